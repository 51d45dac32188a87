-- One tick of a schedule: $1 text name, $2 bigint the revision that was read, $3 timestamptz the next tick that was read (null: none
-- was computed yet), $4 timestamptz the tick to fire (null: none, only move on), $5 timestamptz the next tick.
-- Nothing happens unless the row still says what was read, and the tick is due by the database's clock: of all runners that try, one
-- moves the row on, and inserts the tick and its job in the same statement. No row: another was first, or has it locked.
-- Returns the job; null where none was to be enqueued.
with due as materialized (
  select s.*, s.overlap = 'skip' and exists (select from piecework.job j where j.id = s.last_job) as busy
  from piecework.schedule s
  where s.name = $1::text and s.revision = $2::bigint and s.next_tick is not distinct from $3::timestamptz
    and ($4::timestamptz is null or (s.next_tick <= now() and $4::timestamptz <= now()))
    and s.paused_at is null and s.problem is null
    and (s.source = 'sql' or exists (
      select from piecework.runner r
      where r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules)))
  for update of s skip locked
),
-- A schedule that was removed and made anew does not repeat a tick that it has had.
fired as materialized (
  select d.name,
         case when not d.busy then piecework.enqueue(
           job_type => d.job_type,
           payload => case when d.tick_as is null then d.payload else d.payload || jsonb_build_object(
             d.tick_as, to_char($4::timestamptz at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) end,
           due_at => $4::timestamptz, priority => d.priority::int,
           max_attempts => d.max_attempts, ordering_key => d.ordering_key) end as job
  from due d
  where $4::timestamptz is not null
    and not exists (select from piecework.schedule_tick t where t.schedule = d.name and t.tick = $4::timestamptz)
),
noted as (
  insert into piecework.schedule_tick (schedule, tick, job) select f.name, $4::timestamptz, f.job from fired f
)
update piecework.schedule s
set next_tick = $5::timestamptz,
    last_tick = case when f.name is null then s.last_tick else $4::timestamptz end,
    last_job = coalesce(f.job, s.last_job)
from due d
left join fired f on f.name = d.name
where s.name = d.name
returning f.job, coalesce(d.busy and f.name is not null, false) as busy
