-- Schedules: jobs at the times of a cron expression or at a fixed interval. Safe beside runners of version 2, which know nothing of
-- them and give no ticks.

-- Which schedules of its own settings a runner declares: those tick only while some live runner does.
alter table piecework.runner add column schedules text[] not null default '{}';

-- Every change of a schedule's times takes a new number: a tick that was computed from the old ones matches it no more.
create sequence piecework.schedule_seq as bigint;

create table piecework.schedule (
  name          text        primary key check (length(name) between 1 and 200),
  -- Whose word it is: a runner's settings, or somebody who called piecework.schedule.
  source        text        not null check (source in ('file', 'sql')),
  job_type      text        not null check (length(job_type) between 1 and 200),
  payload       jsonb       not null default '{}' check (pg_column_size(payload) <= 16 * 1024 * 1024),
  priority      smallint    not null default 2 check (priority between 1 and 4),
  max_attempts  int         not null default 5 check (max_attempts between 1 and 100000),
  ordering_key  text        check (length(ordering_key) between 1 and 500),
  -- Under this name the payload of each job has the time of its tick.
  tick_as       text        check (length(tick_as) between 1 and 100),
  -- One of the two.
  cron          text        check (length(cron) between 1 and 500),
  zone          text        not null default 'UTC' check (length(zone) between 1 and 100),
  every         interval    check (every between interval '1 second' and interval '365 days'),
  missed        text        not null default 'skip' check (missed in ('skip', 'once')),
  overlap       text        not null default 'allow' check (overlap in ('allow', 'skip')),
  revision      bigint      not null default nextval('piecework.schedule_seq'),
  paused_at     timestamptz,
  -- Empty until a runner has computed it: the database does not read cron expressions.
  next_tick     timestamptz check (isfinite(next_tick)),
  last_tick     timestamptz,
  last_job      bigint,
  -- Why it cannot tick; for people.
  problem       text,
  created_at    timestamptz not null default clock_timestamp(),
  -- When a live runner last declared it.
  declared_at   timestamptz not null default clock_timestamp(),
  check ((cron is null) <> (every is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Those that want something of a runner, the most urgent first.
create index schedule_next on piecework.schedule (coalesce(next_tick, '-infinity')) where paused_at is null and problem is null;

-- The ticks of the last days, each once: this key is why a tick gives one job, however many runners look at once and however early
-- the job has ended.
create table piecework.schedule_tick (
  schedule      text        not null,
  tick          timestamptz not null,
  -- Empty: the job of an earlier tick had not ended, and the schedule skips then.
  job           bigint,
  fired_at      timestamptz not null default clock_timestamp(),
  primary key (schedule, tick)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
create index schedule_tick_age on piecework.schedule_tick (fired_at);

-- The schedules for people.
create view piecework.schedules as
  select s.name,
         case when s.problem is not null then 'refused'
              when s.paused_at is not null then 'paused'
              when s.source = 'sql' or exists (
                select from piecework.runner r
                where r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules)) then 'active'
              else 'undeclared' end as state,
         s.source, s.job_type, s.cron, case when s.every is null then s.zone end as zone, s.every, s.next_tick, s.last_tick, s.last_job,
         s.problem, s.missed, s.overlap, s.payload, s.priority, s.max_attempts, s.ordering_key, s.tick_as, s.paused_at, s.created_at
  from piecework.schedule s;

-- Enqueues a job of this type at each tick: makes the schedule of this name, or changes it as a whole. Returns false when it stood
-- there just like this.
--   cron     five fields, or six with the second first, in the time zone `zone`  } one of the two
--   every    a fixed interval of whole seconds, from one second to 365 days      }
--   missed   what follows when nobody was there at a tick: skip, or once (one job for all that were missed)
--   overlap  allow, or skip (no job while the job of the tick before has not ended)
--   tick_as  under this name the payload, which is an object then, has the time of the tick in UTC
-- The expression and the zone are read by the next runner; what is wrong with them is then in `problem` of piecework.schedules.
-- Raises 22023 with the reason when something else is wrong, or a running runner has a schedule of this name in its settings.
create function piecework.schedule(
  name text, job_type text, cron text default null, zone text default 'UTC', every interval default null, payload jsonb default '{}',
  priority int default 2, max_attempts int default 5, ordering_key text default null, missed text default 'skip',
  overlap text default 'allow', tick_as text default null
) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
  bad text;
begin
  bad := case
    when coalesce(length(schedule.name), 0) not between 1 and 200 then 'a schedule needs a name of 1 to 200 characters'
    when coalesce(length(schedule.job_type), 0) not between 1 and 200 then 'a schedule needs a job type of 1 to 200 characters'
    when (schedule.cron is null) = (schedule.every is null) then 'a schedule needs one of `cron` and `every`'
    when length(schedule.cron) not between 1 and 500 then 'a cron expression has 1 to 500 characters'
    when coalesce(length(schedule.zone), 0) not between 1 and 100 then 'a time zone is a name such as Europe/Berlin, or UTC'
    when schedule.every is not null and upper(schedule.zone) <> 'UTC' then 'a fixed interval has no time zone'
    when schedule.every is not null and (
      extract(year from schedule.every) <> 0 or extract(month from schedule.every) <> 0
      or extract(epoch from schedule.every) not between 1 and 31536000
      or extract(epoch from schedule.every) <> trunc(extract(epoch from schedule.every)))
      then format('the interval %s is not one of whole seconds, one second to 365 days', schedule.every)
    when schedule.payload is null then 'the payload is null'
    when octet_length(schedule.payload::text) > 1048576
      then format('the payload has %s bytes, the limit is 1048576', octet_length(schedule.payload::text))
    when coalesce(schedule.priority, 0) not between 1 and 4
      then format('priority %s is not one of 1 (first) to 4 (last)', coalesce(schedule.priority::text, 'null'))
    when coalesce(schedule.max_attempts, 0) not between 1 and 100000
      then format('max_attempts %s is not one of 1 to 100000', coalesce(schedule.max_attempts::text, 'null'))
    when length(schedule.ordering_key) not between 1 and 500 then 'an ordering key has 1 to 500 characters'
    when coalesce(schedule.missed, '') not in ('skip', 'once')
      then format('missed is skip or once, not %s', coalesce(schedule.missed, 'null'))
    when coalesce(schedule.overlap, '') not in ('allow', 'skip')
      then format('overlap is allow or skip, not %s', coalesce(schedule.overlap, 'null'))
    when length(schedule.tick_as) not between 1 and 100 then 'tick_as has 1 to 100 characters'
    when schedule.tick_as is not null and jsonb_typeof(schedule.payload) <> 'object'
      then 'the payload is no object, so that the tick cannot be put into it'
  end;
  if bad is not null then
    raise exception using errcode = '22023', message = bad;
  end if;
  perform piecework.refuse_declared(schedule.name, 'changed');
  insert into piecework.schedule as s (
    name, source, job_type, payload, priority, max_attempts, ordering_key, cron, zone, every, missed, overlap, tick_as)
  values (schedule.name, 'sql', schedule.job_type, schedule.payload, schedule.priority, schedule.max_attempts, schedule.ordering_key,
          schedule.cron, schedule.zone, schedule.every, schedule.missed, schedule.overlap, schedule.tick_as)
  on conflict (name) do update set
    source = excluded.source, job_type = excluded.job_type, payload = excluded.payload, priority = excluded.priority,
    max_attempts = excluded.max_attempts, ordering_key = excluded.ordering_key, cron = excluded.cron, zone = excluded.zone,
    every = excluded.every, missed = excluded.missed, overlap = excluded.overlap, tick_as = excluded.tick_as,
    problem = null,
    -- Other times count from now on.
    revision = excluded.revision,
    next_tick = case when (s.cron, s.zone, s.every) is distinct from (excluded.cron, excluded.zone, excluded.every) then null
                     else s.next_tick end
  where (s.source, s.job_type, s.payload, s.priority, s.max_attempts, s.ordering_key, s.cron, s.zone, s.every, s.missed, s.overlap, s.tick_as)
    is distinct from (excluded.source, excluded.job_type, excluded.payload, excluded.priority, excluded.max_attempts,
                      excluded.ordering_key, excluded.cron, excluded.zone, excluded.every, excluded.missed, excluded.overlap, excluded.tick_as)
    -- A newer runner may read what an older one refused.
    or s.problem is not null;
  return found;
end $$;

-- Ends a schedule; jobs that it has enqueued stay. Returns false when there is none of this name.
-- Raises 22023 when a running runner has it in its settings, and so would bring it back.
create function piecework.unschedule(name text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  perform piecework.refuse_declared(unschedule.name, 'removed');
  delete from piecework.schedule s where s.name = unschedule.name;
  return found;
end $$;

-- No ticks until it is resumed. Returns false when it was paused already, or there is none of this name.
create function piecework.pause_schedule(name text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  update piecework.schedule s set paused_at = clock_timestamp() where s.name = pause_schedule.name and s.paused_at is null;
  return found;
end $$;

-- Ticks again, from now on: what fell into the pause is not made up for. Returns false when it was not paused.
create function piecework.resume_schedule(name text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  update piecework.schedule s set paused_at = null, next_tick = null, revision = nextval('piecework.schedule_seq')
  where s.name = resume_schedule.name and s.paused_at is not null;
  return found;
end $$;

-- Two words about one schedule would take turns: while a live runner declares it, its settings are the place for a change.
create function piecework.refuse_declared(name text, what text) returns void language plpgsql as $$
#variable_conflict use_column
declare
  runner text;
begin
  select r.name into runner from piecework.schedule s
  join piecework.runner r on r.state = 'live' and r.lease_until > now() and s.name = any (r.schedules)
  where s.name = refuse_declared.name and s.source = 'file' order by r.id limit 1;
  if found then
    raise exception using errcode = '22023',
      message = format('the schedule %s stands in the settings of the runner %s and can only be %s there',
                       refuse_declared.name, runner, refuse_declared.what),
      hint = 'Change its section in runner.toml, or pause the schedule.';
  end if;
end $$;

revoke execute on function piecework.schedule, piecework.unschedule, piecework.pause_schedule, piecework.resume_schedule,
       piecework.refuse_declared from public;
