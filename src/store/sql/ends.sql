-- Which of these attempts ended their jobs, and whether by being cancelled: $1 bigint[] id, $2 bigint[] claim. Asked for
-- attempts that are stale: a round that was repeated since its answer had been lost finds its own work so.
-- Where such jobs are not kept (retention 0) there is nothing to find: the attempt then counts as stale, although it was written.
select h.id, h.claim, h.state = 'cancelled' as cancelled
from piecework.job_history h
where h.id = any ($1::bigint[]) and h.claim = any ($2::bigint[])
union all
-- Where only cancelled jobs are not kept, a job without a trace was cancelled.
select a.id, a.claim, true
from unnest($1::bigint[], $2::bigint[]) as a (id, claim)
where (select string_agg(r.state::text, ' ') from piecework.retention r where r.keep = interval '0') = 'cancelled'
  and not exists (select from piecework.job j where j.id = a.id)
  and not exists (select from piecework.job_history h where h.id = a.id)
