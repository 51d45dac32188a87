-- Which of these attempts are void, that is, their row is gone or someone else's: $1 bigint[] id, $2 bigint[] claim. Returns
-- them, and whether the job was cancelled while they ran. Where cancelled jobs are not kept (retention 0), every job that is gone is
-- taken for cancelled: the handler of one that somebody else has ended is then told that, and stopped a second later than else.
select a.id, a.claim,
       exists (select from piecework.job_history h where h.id = a.id and h.claim = a.claim and h.state = 'cancelled')
       or (not exists (select from piecework.job j where j.id = a.id)
           and exists (select from piecework.retention r where r.state = 'cancelled' and r.keep = interval '0')) as cancelled
from unnest($1::bigint[], $2::bigint[]) as a (id, claim)
where not exists (select from piecework.job j where j.id = a.id and j.claim = a.claim)
