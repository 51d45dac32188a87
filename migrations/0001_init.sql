-- The queue. One fixed schema, `piecework`, in any PostgreSQL from 13 on.
-- The migrator runs this file inside one transaction that holds its advisory lock; it has made the schema and
-- the table `piecework.migration` already.

create type piecework.job_state as enum ('pending', 'running', 'done', 'failed', 'cancelled');

-- The fence: every claim takes a new number from here, and everything an attempt writes must match it.
create sequence piecework.claim_seq as bigint;

-- One row for each process that runs jobs. Its id is new at every start and after every lost lease.
create table piecework.runner (
  id            bigint generated always as identity primary key,
  name          text        not null check (length(name) between 1 and 200),
  version       text        not null,
  slots         int         not null check (slots > 0),
  job_types     text[]      not null default '{}',
  state         text        not null default 'live' check (state in ('live', 'stopping', 'stopped', 'dead')),
  -- Set shortly before the runner sleeps: only then is a NOTIFY worth its price (a lock that all committing notifiers share).
  waiting       boolean     not null default false,
  started_at    timestamptz not null default clock_timestamp(),
  lease_until   timestamptz not null check (isfinite(lease_until))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Pending and running jobs only: it stays as small as the backlog, whatever the history.
create table piecework.job (
  id            bigint generated always as identity primary key,
  job_type      text        not null check (length(job_type) between 1 and 200),
  state         piecework.job_state not null default 'pending' check (state in ('pending', 'running')),
  priority      smallint    not null default 2 check (priority between 1 and 4),
  due_at        timestamptz not null default clock_timestamp()
                check (due_at > '2000-01-01 00:00:00+00' and due_at < '2200-01-01 00:00:00+00'),
  attempt       int         not null default 0 check (attempt >= 0),
  max_attempts  int         not null default 5 check (max_attempts between 1 and 100000),
  -- Jobs that wait for an earlier job of their ordering key are blocked, and not in the claim index; fresh ones are not decided yet.
  blocked       boolean     not null default false,
  fresh         boolean     not null default false,
  unique_key    text        check (length(unique_key) <= 500),
  ordering_key  text        check (length(ordering_key) <= 500),
  -- Set while the job runs.
  claim         bigint,
  runner        bigint,
  started_at    timestamptz,
  deadline_at   timestamptz check (isfinite(deadline_at)),
  enqueued_at   timestamptz not null default clock_timestamp() check (isfinite(enqueued_at)),
  -- The text is limited to 1 MiB by the enqueue functions; its binary form may be larger.
  payload       jsonb       not null default '{}' check (pg_column_size(payload) <= 16 * 1024 * 1024),
  -- What a job carries between attempts.
  parent        bigint,
  root          bigint,
  last_error    text,
  attempts      jsonb,
  output        text,
  progress      jsonb,
  checkpoint    jsonb,
  trace_context text
) with (
  -- A fifth of the table (the default) would be millions of dead rows at the head of the claim index. A fillfactor buys
  -- nothing: no change of state is ever HOT, since `state` is in the predicates of the indexes.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000
);

-- The claim index: claimable rows only, in exactly the order of the claim. What cannot start is not in it.
create index job_claim on piecework.job (job_type, priority, due_at, id) where state = 'pending' and not blocked;
create index job_running on piecework.job (runner) where state = 'running';
create unique index job_unique on piecework.job (job_type, unique_key) where unique_key is not null;

-- Jobs that ended, append-only, one partition a day (UTC) by the time they ended.
create table piecework.job_history (
  id            bigint      not null,
  job_type      text        not null,
  state         piecework.job_state not null check (state in ('done', 'failed', 'cancelled')),
  priority      smallint    not null,
  due_at        timestamptz not null,
  attempt       int         not null,
  max_attempts  int         not null,
  unique_key    text,
  ordering_key  text,
  enqueued_at   timestamptz not null,
  started_at    timestamptz,
  finished_at   timestamptz not null default clock_timestamp(),
  payload       jsonb       not null,
  result        jsonb,
  parent        bigint,
  root          bigint,
  -- Why the last attempt failed: a class that programs can branch on, and text for people.
  failure       text,
  last_error    text,
  -- The last attempt; earlier ones are in `attempts`.
  claim         bigint,
  runner        bigint,
  plugin        bytea,
  run_us        bigint,
  cpu_us        bigint,
  fuel          bigint,
  peak_memory   bigint,
  attempts      jsonb,
  output        text,
  progress      jsonb,
  trace_context text
) partition by range (finished_at);
create index job_history_id on piecework.job_history (id);

-- Takes what no day partition takes, so that no finish can ever fail for want of one.
create table piecework.job_history_default partition of piecework.job_history default;

-- Makes the history partitions of today and the days to come; returns how many it made.
-- Safe to call from many hosts at once. Attaching needs the default partition for a moment: it gives up after a second,
-- since whoever waits for that lock makes others wait behind it, and there are days left to try again.
create function piecework.make_history_partitions(days int default 7) returns int language plpgsql as $$
declare
  first_day date := (now() at time zone 'utc')::date;
  day date;
  partition text;
  made int := 0;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('piecework.make_history_partitions', 0)) then
    return 0;
  end if;
  perform set_config('lock_timeout', '1s', true);
  for day in select first_day + n from generate_series(0, days) n loop
    partition := 'job_history_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('piecework.' || partition) is not null;
    -- A day that the default partition already holds rows of stays there.
    continue when exists (
      select from piecework.job_history_default
      where finished_at >= day::timestamp at time zone 'utc' and finished_at < (day + 1)::timestamp at time zone 'utc');
    execute format('create table piecework.%I (like piecework.job_history including defaults including constraints)', partition);
    execute format('alter table piecework.job_history attach partition piecework.%I for values from (%L) to (%L)',
                   partition, day::timestamp at time zone 'utc', (day + 1)::timestamp at time zone 'utc');
    made := made + 1;
  end loop;
  return made;
end $$;

-- The queue for people: everything that is waiting, running or kept.
create view piecework.jobs as
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         null::timestamptz as finished_at, payload, null::jsonb as result, parent, root,
         null::text as failure, last_error, runner, null::bytea as plugin, null::bigint as run_us, null::bigint as cpu_us,
         null::bigint as fuel, null::bigint as peak_memory, attempts, output, progress
  from piecework.job
  union all
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         finished_at, payload, result, parent, root,
         failure, last_error, runner, plugin, run_us, cpu_us,
         fuel, peak_memory, attempts, output, progress
  from piecework.job_history;

-- Wakes the runners that wait for these job types. A runner that is busy looks at the table by itself.
create function piecework.wake(job_types text[]) returns void language sql as $$
  select pg_notify('piecework', t.job_type)
  from (select distinct job_type from unnest(job_types) as u(job_type)) t
  where exists (
    select from piecework.runner r
    where r.waiting and r.state = 'live' and r.lease_until > now() and t.job_type = any (r.job_types))
$$;

-- Enqueues one job and returns its id. Use it inside your own transaction: the job exists when, and only when, that commits.
--   due_at        not before this time          } one of the two; now when neither is given
--   delay         not before this much later    }
--   priority      1 first to 4 last
--   max_attempts  how often it may be tried before it fails for good
--   parent        the job that this one follows from
-- Raises 22023 (invalid_parameter_value) with the reason when something is wrong.
create function piecework.enqueue(
  job_type text, payload jsonb default '{}', due_at timestamptz default null, delay interval default null,
  priority int default 2, max_attempts int default 5, parent bigint default null
) returns bigint language plpgsql as $$
declare
  due timestamptz;
  new_id bigint;
begin
  if coalesce(length(enqueue.job_type), 0) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'a job needs a job type of 1 to 200 characters';
  end if;
  if enqueue.payload is null then
    raise exception using errcode = '22023', message = 'the payload is null', hint = 'Pass ''{}'' for a job without a payload.';
  end if;
  if octet_length(enqueue.payload::text) > 1048576 then
    raise exception using errcode = '22023',
      message = format('the payload has %s bytes, the limit is 1048576', octet_length(enqueue.payload::text)),
      hint = 'Store the data elsewhere and enqueue a reference to it.';
  end if;
  if enqueue.due_at is not null and enqueue.delay is not null then
    raise exception using errcode = '22023', message = 'both due_at and delay are given', hint = 'Give one of the two.';
  end if;
  due := coalesce(enqueue.due_at, clock_timestamp() + coalesce(enqueue.delay, interval '0'));
  if due <= '2000-01-01 00:00:00+00' or due >= '2200-01-01 00:00:00+00' or enqueue.delay < interval '0' then
    raise exception using errcode = '22023', message = format('a job cannot be due at %s', due),
      hint = 'The time lies between the years 2000 and 2200, a delay is not negative.';
  end if;
  if enqueue.priority is null or enqueue.priority not between 1 and 4 then
    raise exception using errcode = '22023', message = format('priority %s is not one of 1 (first) to 4 (last)', coalesce(enqueue.priority::text, 'null'));
  end if;
  if enqueue.max_attempts is null or enqueue.max_attempts not between 1 and 100000 then
    raise exception using errcode = '22023', message = format('max_attempts %s is not one of 1 to 100000', coalesce(enqueue.max_attempts::text, 'null'));
  end if;
  insert into piecework.job (job_type, payload, due_at, priority, max_attempts, parent)
  values (enqueue.job_type, enqueue.payload, due, enqueue.priority, enqueue.max_attempts, enqueue.parent)
  returning id into new_id;
  -- A sleeping runner looks at the table every few seconds anyway: a job due later than that needs no wake-up.
  if due < clock_timestamp() + interval '10 seconds' then
    perform piecework.wake(array[enqueue.job_type]);
  end if;
  return new_id;
end $$;

-- Enqueues many jobs from a JSON array and returns their ids in its order. Each element is an object with `job_type` and,
-- as wanted, `payload`, `due_at`, `delay` (seconds), `priority`, `max_attempts`, `parent`, which mean the same as for `enqueue`.
-- All or nothing. Raises 22023 and names the element, counted from 0, when something is wrong.
create function piecework.enqueue_many(jobs jsonb) returns setof bigint language plpgsql as $$
declare
  bad text;
  place bigint;
  element jsonb;
begin
  if jobs is null or jsonb_typeof(jobs) <> 'array' then
    raise exception using errcode = '22023', message = 'enqueue_many takes a JSON array of jobs';
  end if;
  -- Values of the wrong kind first: the casts below would fail without saying where.
  for element, place in select e.job, e.n - 1 from jsonb_array_elements(jobs) with ordinality as e (job, n) loop
    continue when jsonb_typeof(element) <> 'object'
      or (coalesce(jsonb_typeof(element -> 'delay'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'priority'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'max_attempts'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'parent'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'due_at'), 'null') = 'null');
    bad := case
      when coalesce(jsonb_typeof(element -> 'delay'), 'null') not in ('null', 'number') then 'delay must be a number of seconds, 0 or more'
      when coalesce(jsonb_typeof(element -> 'priority'), 'null') not in ('null', 'number') then 'priority must be 1 (first) to 4 (last)'
      when coalesce(jsonb_typeof(element -> 'max_attempts'), 'null') not in ('null', 'number') then 'max_attempts must be 1 to 100000'
      when coalesce(jsonb_typeof(element -> 'parent'), 'null') not in ('null', 'number') then 'parent must be the id of a job'
    end;
    if bad is null then
      begin
        perform (element ->> 'due_at')::timestamptz;
      exception when others then
        bad := format('due_at is not a time: %s', sqlerrm);
      end;
    end if;
    if bad is not null then
      raise exception using errcode = '22023', message = format('job %s: %s', place, bad);
    end if;
  end loop;
  select format('job %s: %s', e.n - 1, p.problem) into bad
  from jsonb_array_elements(jobs) with ordinality as e (job, n)
  cross join lateral (
    select case
      when jsonb_typeof(e.job) <> 'object' then 'it is not an object'
      when (e.job - array['job_type', 'payload', 'due_at', 'delay', 'priority', 'max_attempts', 'parent']) <> '{}'::jsonb
        then format('`%s` is not known; known are job_type, payload, due_at, delay, priority, max_attempts, parent',
                    (select k from jsonb_object_keys(e.job - array['job_type', 'payload', 'due_at', 'delay', 'priority', 'max_attempts', 'parent']) k limit 1))
      when jsonb_typeof(e.job -> 'job_type') is distinct from 'string' or length(e.job ->> 'job_type') not between 1 and 200
        then 'it needs a `job_type` of 1 to 200 characters'
      when octet_length((e.job -> 'payload')::text) > 1048576
        then format('the payload has %s bytes, the limit is 1048576', octet_length((e.job -> 'payload')::text))
      when (e.job -> 'due_at') <> 'null' and (e.job -> 'delay') <> 'null' then 'both due_at and delay are given'
      when (e.job ->> 'due_at')::timestamptz <= '2000-01-01 00:00:00+00' or (e.job ->> 'due_at')::timestamptz >= '2200-01-01 00:00:00+00'
        then 'due_at must lie between the years 2000 and 2200'
      when (e.job ->> 'delay')::float8 not between 0 and 5000000000 then 'delay must be a number of seconds, 0 or more'
      when (e.job ->> 'priority')::numeric not in (1, 2, 3, 4) then 'priority must be 1 (first) to 4 (last)'
      when (e.job ->> 'max_attempts')::numeric not between 1 and 100000
        or (e.job ->> 'max_attempts')::numeric <> trunc((e.job ->> 'max_attempts')::numeric) then 'max_attempts must be 1 to 100000'
      when (e.job ->> 'parent')::numeric not between -9223372036854775808 and 9223372036854775807
        or (e.job ->> 'parent')::numeric <> trunc((e.job ->> 'parent')::numeric) then 'parent must be the id of a job'
    end as problem) p
  where p.problem is not null
  order by e.n limit 1;
  if bad is not null then
    raise exception using errcode = '22023', message = bad;
  end if;
  return query
    insert into piecework.job (job_type, payload, due_at, priority, max_attempts, parent)
    select e.job ->> 'job_type', coalesce(e.job -> 'payload', '{}'),
           coalesce((e.job ->> 'due_at')::timestamptz,
                    clock_timestamp() + make_interval(secs => coalesce((e.job ->> 'delay')::float8, 0))),
           coalesce((e.job ->> 'priority')::numeric::smallint, 2), coalesce((e.job ->> 'max_attempts')::numeric::int, 5),
           (e.job ->> 'parent')::numeric::bigint
    from jsonb_array_elements(jobs) with ordinality as e (job, n)
    order by e.n
    returning id;
  perform piecework.wake(array(select distinct e.job ->> 'job_type' from jsonb_array_elements(jobs) as e (job)));
end $$;

select piecework.make_history_partitions();
