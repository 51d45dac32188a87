-- Schedules that want something of a runner: those without a next tick, and those whose next tick is less than $1 float8 seconds
-- away; $2 int most. Returns the database's clock with each, and in how many seconds each ticks.
select s.name, s.revision, s.cron, s.zone, extract(epoch from s.every)::float8 as every, s.missed, s.next_tick, now() as now,
       extract(epoch from s.next_tick - now())::float8 as seconds
from piecework.schedule s
where s.paused_at is null and s.problem is null
  and coalesce(s.next_tick, '-infinity') < now() + make_interval(secs => $1::float8)
  and (s.source = 'sql' or exists (
    select from piecework.runner r
    where r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules)))
order by coalesce(s.next_tick, '-infinity')
limit $2::int
