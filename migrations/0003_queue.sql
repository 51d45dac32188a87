-- How long ended jobs are kept, and how many there are of what.
-- Safe while runners of version 2 work: they go on with the functions that they know. What they finish is kept also where nothing is to
-- be kept, and goes with its day.

-- How long jobs are kept after their end, by the state they ended in. One setting for the fleet, hence here and not in a file of each
-- host. 0: nothing is kept.
create table piecework.retention (
  state         piecework.job_state primary key check (state in ('done', 'failed', 'cancelled')),
  keep          interval    not null check (keep >= interval '0' and extract(epoch from keep) <= 3155760000)
);
insert into piecework.retention (state, keep) values ('done', '7 days'), ('failed', '90 days'), ('cancelled', '30 days');
-- No secret, and `cancel` reads it with the rights of its caller.
grant select on piecework.retention to public;

-- From now on keeps jobs that ended in this state so long: whole days (UTC) are dropped, so it may be a day more. 0: jobs that end so
-- are not kept at all. Returns false when it was so already.
create function piecework.keep(state text, keep interval) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  if keep.state is null or keep.state not in ('done', 'failed', 'cancelled') then
    raise exception using errcode = '22023', message = format('jobs do not end as %s', coalesce(keep.state, 'null')),
      hint = 'The state is done, failed or cancelled.';
  end if;
  if keep.keep is null or keep.keep < interval '0' or extract(epoch from keep.keep) > 3155760000 then
    raise exception using errcode = '22023', message = format('jobs cannot be kept for %s', coalesce(keep.keep::text, 'null')),
      hint = 'The time lies between 0, which keeps nothing, and 100 years.';
  end if;
  insert into piecework.retention as r (state, keep) values (keep.state::piecework.job_state, keep.keep)
  on conflict (state) do update set keep = excluded.keep where r.keep <> excluded.keep;
  return found;
end $$;

-- Makes the history partitions of today and the days to come; returns how many it made. A day has a table for each state that a job
-- ends in, since they are kept for different times: dropping a table costs the same whatever is in it, and leaves nothing to vacuum.
-- Days made by version 2 have all states in one table and stay as they are.
-- Safe to call from many hosts at once. Attaching needs the default partition for a moment: it gives up after a second,
-- since whoever waits for that lock makes others wait behind it, and there are days left to try again.
create or replace function piecework.make_history_partitions(days int default 7) returns int language plpgsql as $$
declare
  first_day date := (now() at time zone 'utc')::date;
  day date;
  partition text;
  state piecework.job_state;
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
    -- Made apart and attached whole, since `partition of` the history itself would lock all of it, today's inserts included.
    execute format('create table piecework.%I (like piecework.job_history including defaults including constraints) partition by list (state)',
                   partition);
    foreach state in array array['done', 'failed', 'cancelled']::piecework.job_state[] loop
      execute format('create table piecework.%I partition of piecework.%I for values in (%L)', partition || '_' || state, partition, state);
    end loop;
    execute format('alter table piecework.job_history attach partition piecework.%I for values from (%L) to (%L)',
                   partition, day::timestamp at time zone 'utc', (day + 1)::timestamp at time zone 'utc');
    made := made + 1;
  end loop;
  return made;
end $$;

-- Drops what has been kept long enough: tables of whole days (UTC), never rows, except for those that no day took. At most `most` tables
-- and 1,000 rows a call, so that no lock is held long; runners call it hourly until it returns no row. A row of the answer is a table
-- that was dropped, or the default partition and how many jobs were deleted from it, or a table that is `put_off`: somebody
-- reads it, and the next call tries again. Safe to call from many hosts at once.
-- Locks: dropping the table of a state locks that table and the table of its day. A finish of today locks the history and its own day
-- alone, and does not wait, also when the drop itself waits for a reader (looked at from other sessions, tests/it/retention.rs).
-- Dropping a day, empty or of version 2, locks the whole history for a moment. So that is done by itself, at most one a call,
-- and never waits for more than 200 ms, for which finishes wait too. (100 days in 8.7 s beside 1,300 finishes a second: the longest of
-- these took 95 ms, and none of the drops was put off.)
create function piecework.drop_old_history(most int default 10)
returns table (dropped text, jobs bigint, put_off boolean) language plpgsql as $$
#variable_conflict use_column
declare
  target record;
  rest record;
  longest interval;
  done int := 0;
begin
  if not pg_try_advisory_xact_lock(hashtextextended('piecework.drop_old_history', 0)) then
    return;
  end if;
  perform set_config('lock_timeout', '200ms', true);
  -- Null when a state has no row, and then nothing of it is dropped.
  select case when count(*) = 3 then max(r.keep) end into longest from piecework.retention r;
  for target in
    -- Whose last moment was an hour ago at least: a runner that finishes a job at midnight must find the table that its clock says.
    select c.relname, n.day_end
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral (select (to_date(substring(c.relname from '^job_history_(2\d{7})$'), 'YYYYMMDD') + 1)::timestamp at time zone 'utc' as day_end) n
    where i.inhparent = 'piecework.job_history'::regclass
      and n.day_end <= now() - interval '1 hour'
      and case when c.relkind = 'p' then not exists (select from pg_inherits l where l.inhparent = c.oid)
               else n.day_end <= now() - longest end
    order by n.day_end limit 1
  loop
    begin
      -- Its own lock first, and at once: to wait for a reader of this day with the lock on the whole history would hold up everybody.
      execute format('lock table only piecework.%I in access exclusive mode nowait', target.relname);
      execute format('drop table piecework.%I', target.relname);
      return query select target.relname::text, null::bigint, false;
      return;
    exception when lock_not_available or deadlock_detected or dependent_objects_still_exist then
      return query select target.relname::text, null::bigint, true;
    end;
  end loop;
  for target in
    select l.relname
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid and c.relkind = 'p'
    join pg_inherits k on k.inhparent = c.oid
    join pg_class l on l.oid = k.inhrelid
    join piecework.retention r on l.relname = c.relname || '_' || r.state
    cross join lateral (select (to_date(substring(c.relname from '^job_history_(2\d{7})$'), 'YYYYMMDD') + 1)::timestamp at time zone 'utc' as day_end) n
    where i.inhparent = 'piecework.job_history'::regclass
      and n.day_end <= now() - greatest(r.keep, interval '1 hour')
    order by n.day_end, l.relname limit greatest(drop_old_history.most, 0)
  loop
    begin
      execute format('drop table piecework.%I', target.relname);
      return query select target.relname::text, null::bigint, false;
      -- What is dropped stays locked to the end of the call, which therefore waits for others no more than 20 ms each.
      perform set_config('lock_timeout', '20ms', true);
    exception when lock_not_available or deadlock_detected or dependent_objects_still_exist then
      return query select target.relname::text, null::bigint, true;
    end;
  end loop;
  for rest in select r.state, r.keep from piecework.retention r loop
    delete from piecework.job_history_default h
    where h.ctid = any (array(
      select o.ctid from piecework.job_history_default o
      where o.state = rest.state
        and o.finished_at < date_trunc('day', (now() - greatest(rest.keep, interval '1 hour')) at time zone 'utc') at time zone 'utc'
      limit 1000 - done for update skip locked));
    get diagnostics jobs = row_count;
    done := done + jobs;
  end loop;
  if done > 0 then
    return query select 'job_history_default', done::bigint, false;
  end if;
end $$;
-- Mostly empty; it holds what ended on days for which no table could be made in time.
create index job_history_default_old on piecework.job_history_default (state, finished_at);

-- A queue in which nothing has ever ended, a new one mostly: it has the new tables from its first day on.
do $$
declare
  partition text;
  patience text := current_setting('lock_timeout');
begin
  if exists (select from piecework.job_history) then
    return;
  end if;
  perform set_config('lock_timeout', '500ms', true);
  for partition in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'piecework.job_history'::regclass and c.relkind = 'r' and c.relname ~ '^job_history_2\d{7}$'
  loop
    execute format('lock table piecework.%I in access exclusive mode', partition);
    execute format('drop table piecework.%I', partition);
  end loop;
  -- Somebody has finished a job since the first look.
  if exists (select from piecework.job_history) then
    raise exception using errcode = '55P03';
  end if;
  perform piecework.make_history_partitions();
  perform set_config('lock_timeout', patience, true);
exception when lock_not_available then
  null;
end $$;

-- Cancels a job, for good: whatever its handler returns later changes nothing, no follow-up of it is enqueued, and no attempt
-- follows. A handler that runs is stopped within two seconds. Returns the state that the job has from now on: `cancelled`, or
-- `done` or `failed` when it had ended before. Null: there is no such job (any more), or what was cancelled is not kept.
create or replace function piecework.cancel(id bigint) returns text language plpgsql as $$
#variable_conflict use_column
declare
  gone piecework.job;
  ended text;
begin
  -- Waits for a finish that is just being written; whoever comes second finds the row gone.
  delete from piecework.job j where j.id = cancel.id returning j.* into gone;
  if found then
    insert into piecework.job_history (
      id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
      payload, parent, root, failure, last_error, claim, runner, attempts, output, progress, checkpoint, trace_context)
    select
      gone.id, gone.job_type, 'cancelled', gone.priority, gone.due_at, gone.attempt, gone.max_attempts, gone.unique_key,
      gone.ordering_key, gone.enqueued_at, gone.started_at, gone.payload, gone.parent, gone.root, 'cancelled', gone.last_error,
      gone.claim, gone.runner, gone.attempts, gone.output, gone.progress, gone.checkpoint, gone.trace_context
    where not exists (select from piecework.retention r where r.state = 'cancelled' and r.keep = interval '0');
    if gone.ordering_key is not null and not gone.blocked then
      insert into piecework.key_todo (ordering_key) values (gone.ordering_key);
      perform piecework.wake(array(
        select j.job_type from piecework.job j where j.ordering_key = gone.ordering_key order by j.id limit 1));
    end if;
    if gone.state = 'running' then
      perform pg_notify('piecework_cancel', gone.id::text);
    end if;
    return 'cancelled';
  end if;
  select h.state::text into ended from piecework.job_history h where h.id = cancel.id order by h.finished_at desc limit 1;
  return ended;
end $$;

-- The first job of the chain that a job belongs to: the job itself when it follows from none. Of a job that has ended the history is
-- asked, all days of it only when it did not end today or yesterday: each table that a statement may read is locked until the
-- caller's transaction ends, and 90 days are some hundreds of locks out of the server's 6,400. Planned anew with the times in it, the
-- statement is about a dozen tables. A job that is not kept is the first of its chain.
create or replace function piecework.root_of(job bigint) returns bigint language plpgsql stable as $$
declare
  root bigint;
  day timestamptz;
begin
  select coalesce(j.root, j.id) into root from piecework.job j where j.id = root_of.job;
  if found then
    return root;
  end if;
  day := date_trunc('day', now() at time zone 'utc') at time zone 'utc';
  execute 'select coalesce(h.root, h.id) from piecework.job_history h where h.id = $1 and h.finished_at >= $2 and h.finished_at < $3
           order by h.finished_at desc limit 1'
    into root using root_of.job, day - interval '1 day', day + interval '1 day';
  if root is null then
    select coalesce(h.root, h.id) into root from piecework.job_history h where h.id = root_of.job order by h.finished_at desc limit 1;
  end if;
  return coalesce(root, root_of.job);
end $$;

-- Starts this ended job anew, which is looked for where it must be: its state and end say in which table. By the id alone each job
-- takes a look into each table of the history, 1.4 ms for 300 of them. False: it is not there (any more).
create function piecework.start_anew(id bigint, state piecework.job_state, finished_at timestamptz) returns boolean language plpgsql as $$
#variable_conflict use_column
declare
  old piecework.job_history;
begin
  -- Planned anew each time, with the values: only so are the other tables neither locked nor opened.
  execute 'delete from piecework.job_history h where h.id = $1 and h.state = $2 and h.finished_at = $3 returning h.*'
    into old using start_anew.id, start_anew.state, start_anew.finished_at;
  if old.id is null then
    return false;
  end if;
  insert into piecework.job (
    id, job_type, priority, due_at, max_attempts, unique_key, ordering_key, enqueued_at, payload, parent, root, last_error,
    attempts, output, progress, checkpoint, trace_context, blocked)
  overriding system value
  values (
    old.id, old.job_type, old.priority, clock_timestamp(), old.max_attempts, old.unique_key, old.ordering_key, old.enqueued_at,
    old.payload, old.parent, old.root, old.last_error,
    case when old.run_us is null and old.state = 'cancelled' then old.attempts else
      -- The newest 20 are kept.
      case when jsonb_array_length(old.attempts) >= 20 then old.attempts - 0 else coalesce(old.attempts, '[]') end
        || jsonb_strip_nulls(jsonb_build_object(
             'attempt', old.attempt, 'failure', old.failure, 'error', old.last_error, 'runner', old.runner,
             'plugin', encode(old.plugin, 'hex'), 'started_at', old.started_at, 'run_us', old.run_us, 'cpu_us', old.cpu_us,
             'fuel', old.fuel, 'peak_memory', old.peak_memory, 'http_calls', old.http_calls, 'http_bytes', old.http_bytes,
             'http_us', old.http_us)) end,
    old.output, old.progress, old.checkpoint, old.trace_context,
    -- Its turn comes by its id again, as soon as no other job of its key is under way.
    old.ordering_key is not null);
  if old.ordering_key is not null then
    insert into piecework.key_todo (ordering_key) values (old.ordering_key);
  end if;
  perform piecework.wake(array[old.job_type]);
  return true;
exception when unique_violation then
  raise exception using errcode = '23505',
    message = format('job %s cannot be started anew: another job of type %s has its unique key %s', old.id, old.job_type, old.unique_key),
    hint = 'Cancel that one first, or let it end.';
end $$;


-- Starts a job anew that has failed or was cancelled: pending and due now, with its id, payload, checkpoints and the history of
-- its errors, and all its attempts before it. Returns the state that the job has from now on: `pending`, or the one that it has
-- (`done`, `running`, ...) when there was nothing to start anew. Null: there is no such job (any more).
-- Raises 23505 when another job has taken its unique key meanwhile.
create or replace function piecework.retry(id bigint) returns text language plpgsql as $$
#variable_conflict use_column
declare
  ended record;
  now_state text;
begin
  select h.state, h.finished_at into ended from piecework.job_history h
  where h.id = retry.id and h.state in ('failed', 'cancelled') limit 1;
  if found and piecework.start_anew(retry.id, ended.state, ended.finished_at) then
    return 'pending';
  end if;
  select j.state::text into now_state from piecework.jobs j where j.id = retry.id limit 1;
  return now_state;
end $$;

-- Starts jobs anew that have failed (or, with state 'cancelled', were cancelled), the oldest first: all, or those of one type, at
-- most `most`. Those whose unique key another job has taken are left. Returns how many were started anew.
create or replace function piecework.retry_all(job_type text default null, state text default 'failed', most int default 10000)
returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  job record;
  started bigint := 0;
begin
  if retry_all.state is null or retry_all.state not in ('failed', 'cancelled') then
    raise exception using errcode = '22023', message = format('jobs that are %s cannot be started anew', coalesce(retry_all.state, 'null')),
      hint = 'The state is failed or cancelled.';
  end if;
  for job in
    select h.id, h.state, h.finished_at from piecework.job_history h
    where h.state = retry_all.state::piecework.job_state and (retry_all.job_type is null or h.job_type = retry_all.job_type)
    order by h.id limit greatest(retry_all.most, 0)
  loop
    begin
      if piecework.start_anew(job.id, job.state, job.finished_at) then
        started := started + 1;
      end if;
    exception when unique_violation then
      null;
    end;
  end loop;
  return started;
end $$;

-- Jobs that wait for an earlier one of their key, by type: for counting. Jobs without a key are not in it. With a million that wait it
-- takes 1.4 s, for which enqueues, claims and finishes wait.
create index job_blocked on piecework.job (job_type, due_at) where state = 'pending' and blocked;

-- How many jobs ended since then, by type and state. Reads at most about 1,000 pages (8 MB) of each table that it looks into: what fits is
-- counted, of what does not a sample is taken at random, and the numbers are marked as estimated. Looks at the tables of the days
-- since then one by one, so that no others are locked or planned.
create function piecework.finished_since(ago interval)
returns table (job_type text, state text, jobs bigint, estimated boolean) language plpgsql as $$
#variable_conflict use_column
declare
  part record;
  share float8;
begin
  for part in
    select c.oid as relid from pg_class c
    where c.relnamespace = 'piecework'::regnamespace and c.relkind = 'r' and c.relname ~ '^job_history_(default$|2\d{7})' and (
      c.relname = 'job_history_default'
      or substr(c.relname, 13, 8) between to_char((now() - finished_since.ago) at time zone 'utc', 'YYYYMMDD')
                                      and to_char(now() at time zone 'utc', 'YYYYMMDD'))
  loop
    share := least(1, 1000.0 * current_setting('block_size')::int / greatest(pg_relation_size(part.relid), 1));
    return query execute format(
      'select h.job_type, h.state::text, round(count(*) / $1)::bigint, $1 < 1 from %s h tablesample system (100 * $1)
       where h.finished_at > now() - $2 group by 1, 2', part.relid::regclass)
      using share, finished_since.ago;
  end loop;
end $$;

revoke execute on all functions in schema piecework from public;
-- After the revoke. Part of `retry` and `retry_all`; it works with the rights of whoever calls those, who need no new grant so.
grant execute on function piecework.start_anew to public;
