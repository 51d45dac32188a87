-- Which of these attempts ended their jobs: $1 bigint[] id, $2 bigint[] claim. Asked when a round was repeated whose answer
-- had been lost: what it had written looks stale the second time.
select h.id, h.claim
from piecework.job_history h
where h.id = any ($1::bigint[]) and h.claim = any ($2::bigint[])
