-- Which of these attempts ended their jobs, and whether by being cancelled: $1 bigint[] id, $2 bigint[] claim. Asked for
-- attempts that are stale: a round that was repeated since its answer had been lost finds its own work so.
select h.id, h.claim, h.state = 'cancelled' as cancelled
from piecework.job_history h
where h.id = any ($1::bigint[]) and h.claim = any ($2::bigint[])
