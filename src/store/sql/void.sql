-- Which of these attempts are void, that is, their row is gone or someone else's: $1 bigint[] id, $2 bigint[] claim. Returns
-- them, and whether the job was cancelled while they ran.
select a.id, a.claim,
       exists (select from piecework.job_history h where h.id = a.id and h.claim = a.claim and h.state = 'cancelled') as cancelled
from unnest($1::bigint[], $2::bigint[]) as a (id, claim)
where not exists (select from piecework.job j where j.id = a.id and j.claim = a.claim)
