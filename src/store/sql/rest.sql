-- What a runner does before it sleeps: says that it waits, so that enqueue notifies it, and asks when its next job is due.
--   $1 bigint runner  $2 text[] job types  $3 smallint[] priorities, paired with $2
-- Returns the seconds until then; null when nothing is scheduled.
with flag as (
  update piecework.runner r set waiting = true
  from (select set_config('synchronous_commit', 'off', true)) as s (setting)
  where r.id = $1::bigint and not r.waiting and r.state in ('live', 'stopping') and s.setting = 'off'
)
select extract(epoch from min(n.due_at) - clock_timestamp())::float8 as seconds
from unnest($2::text[], $3::smallint[]) as t (job_type, priority)
cross join lateral (
  (select j.due_at
  from piecework.job j
  where j.state = 'pending' and not j.blocked and j.job_type = t.job_type and j.priority = t.priority and j.due_at > now()
  order by j.due_at, j.id
  limit 1)
  union all
  (select j.due_at
  from piecework.job j
  where t.priority = 1 and j.state = 'pending' and j.group_state = 1 and j.job_type = t.job_type
  order by j.due_at
  limit 1)) n
