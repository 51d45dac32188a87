-- Forgets schedules of runners' settings that no live runner has declared for a day, and ticks that are older than two days.
with old as (
  delete from piecework.schedule_tick t where t.fired_at < now() - interval '2 days'
),
declared as (
  update piecework.schedule s set declared_at = now()
  where s.source = 'file' and exists (
    select from piecework.runner r
    where r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules))
)
delete from piecework.schedule s
where s.source = 'file' and s.declared_at < now() - interval '1 day' and not exists (
  select from piecework.runner r
  where r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules))
returning s.name
