-- Groups, limits of the whole fleet, and batches; how long ended jobs are kept, and counts; schedules; runners that do not own the schema.
-- In several transactions, since each index takes a fifth of a second for a million jobs, during which nothing is written. None locks two
-- tables against writers: a finish that has the one and waits for the other would be ended as a deadlock.
-- Safe while runners of version 2 work: they do not see jobs with a group key, which are `blocked` to them, and go on with all others.
-- Limits of the fleet do not hold for what they start, and what they finish is kept also where nothing is to be kept, until its day goes.

-- What is new about a job may be null: no row is rewritten.
alter table piecework.job
  -- Whom the job is for: jobs of one type take turns between groups. Not in the claim index; see group_state.
  add column if not exists group_key text collate "C",
  -- 0 waits for an earlier job of its ordering key, 1 waits for its time, 2 can be claimed. Null: it has no group.
  add column if not exists group_state smallint,
  -- Set while it runs and counts for a limit of the fleet.
  add column if not exists counted boolean,
  -- The job that runs when all jobs of this batch have ended; that job itself has its own id here.
  add column if not exists batch bigint;
-- next transaction
alter table piecework.job_history
  add column if not exists group_key text,
  add column if not exists batch bigint;

-- The claim indexes of jobs with a group: those that can be claimed, group by group, and those that wait for their time.
-- next transaction
create index if not exists job_group on piecework.job (job_type, priority, group_key, due_at, id) where state = 'pending' and group_state = 2;
-- next transaction
create index if not exists job_group_later on piecework.job (job_type, due_at) where state = 'pending' and group_state = 1;
-- What runs and counts for a limit. `claim` rises, so a count starts behind the dead entries of all jobs that ended before.
-- next transaction
create index if not exists job_counted on piecework.job (job_type, claim) where counted and state = 'running';
-- next transaction
create index if not exists job_counted_group on piecework.job (job_type, group_key, claim) where counted and state = 'running' and group_key is not null;
-- next transaction
create index if not exists job_batch on piecework.job (batch, id) where batch is not null;
-- The keys that have a job under way or free to start.
-- next transaction
create index if not exists job_key_free on piecework.job (ordering_key, id) where ordering_key is not null and (not blocked or group_state > 0);
-- Jobs that wait for an earlier one of their key or for their batch, by type: for counting. With a million that wait it takes 1.4 s, for
-- which enqueues, claims and finishes wait; otherwise a fifth of a second.
-- next transaction
create index if not exists job_blocked on piecework.job (job_type, due_at) where state = 'pending' and blocked and coalesce(group_state, 0) = 0;
-- next transaction
drop index if exists piecework.job_key_open;
-- Holds for every row that is written from now on; those that exist have no group.
alter table piecework.job
  drop constraint if exists job_group_key_check,
  drop constraint if exists job_group_check,
  add constraint job_group_key_check check (length(group_key) <= 500) not valid,
  add constraint job_group_check check ((group_key is null) = (group_state is null) and group_state between 0 and 2) not valid;
-- A note is about an ordering key, or about a batch one of whose jobs has ended.
-- next transaction
alter table piecework.key_todo alter column ordering_key drop not null, add column if not exists batch bigint;
-- Which schedules of its own settings a runner declares: those tick only while some live runner does.
-- next transaction
alter table piecework.runner add column if not exists schedules text[] not null default '{}';
-- Mostly empty; it holds what ended on days for which no table could be made in time.
-- next transaction
create index if not exists job_history_default_old on piecework.job_history_default (state, finished_at);
-- next transaction

-- Starts of the last interval, for start rates: counted in tenths of the interval, so that no interval, wherever it begins, has
-- more than the limit. Empty group key: the job type as a whole.
create table piecework.start_count (
  job_type      text        not null,
  group_key     text collate "C" not null default '',
  slot          timestamptz not null,
  until         timestamptz not null,
  n             int         not null,
  primary key (job_type, group_key, slot)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Unblocks the first job of each of these keys that has no unblocked one. The keys are locked. A job that somebody else has
-- locked, to cancel it perhaps, is waited for by nobody: its key is looked at again later. Returns how many keys that were.
create or replace function piecework.unblock(keys text[]) returns int language plpgsql as $$
declare
  heads bigint[];
  free bigint[];
  put_off int;
begin
  -- The limits keep the looks at the two indexes apart, key by key: as a NOT EXISTS it became a join that compared each key
  -- with each unblocked job (0.9 s for 2,000 keys and 9,500 jobs, in place of 10 ms).
  select array_agg(h.id) into heads
  from unnest(keys) as k (key)
  cross join lateral (
    select j.id from piecework.job j where j.ordering_key = k.key order by j.id limit 1) h
  left join lateral (
    select true as taken from piecework.job j
    where j.ordering_key = k.key and (not j.blocked or j.group_state > 0) order by j.id limit 1) o on true
  where o.taken is null;
  if heads is null then
    return 0;
  end if;
  select array_agg(f.id) into free
  from (select j.id from piecework.job j where j.id = any (heads) and j.blocked and coalesce(j.group_state, 0) = 0 for update skip locked) f;
  update piecework.job j
  -- Ahead of the low-water marks of the runners, whatever its time was.
  set blocked = j.group_key is not null, due_at = greatest(j.due_at, clock_timestamp()),
      group_state = case when j.group_key is not null then case when j.due_at > clock_timestamp() then 1 else 2 end end
  where j.id = any (free);
  -- Others may be the only ones who serve them, and asleep.
  perform piecework.wake(array(select distinct j.job_type from piecework.job j where j.id = any (free)));
  if cardinality(free) = cardinality(heads) then
    return 0;
  end if;
  insert into piecework.key_todo (ordering_key)
  select j.ordering_key from piecework.job j where j.id = any (heads) and j.blocked and coalesce(j.group_state, 0) = 0;
  get diagnostics put_off = row_count;
  return put_off;
end $$;

-- Lets the job of each of these batches start that has no job left. Called without a lock: whoever deletes a batch's job notes the
-- batch in the same transaction, so who sees the last note sees no job. Twice does no harm.
create function piecework.end_batches(batches bigint[]) returns void language plpgsql as $$
declare
  over bigint[];
begin
  select array_agg(b.id) into over
  from unnest(batches) as b (id)
  left join lateral (
    -- In the order of the index: without one a large batch makes a scan look good.
    select true as found from piecework.job j where j.batch = b.id and j.id <> b.id order by j.id limit 1) m on true
  where m.found is null;
  -- Apart from the update, and found by their ids: more conditions there would invite the index of all blocked jobs. One that somebody
  -- has locked is found later, like those of note_idle_keys.sql.
  select array_agg(f.id) into over
  from (select j.id, j.batch, j.state, j.blocked, j.group_state from piecework.job j where j.id = any (over) offset 0 for update skip locked) f
  where f.batch = f.id and f.state = 'pending' and f.blocked and coalesce(f.group_state, 0) = 0;
  update piecework.job j
  -- Ahead of the low-water marks of the runners, whatever its time was.
  set blocked = j.group_key is not null, due_at = greatest(j.due_at, clock_timestamp()),
      group_state = case when j.group_key is not null then case when j.due_at > clock_timestamp() then 1 else 2 end end
  where j.id = any (over);
  perform piecework.wake(array(select distinct j.job_type from piecework.job j where j.id = any (over)));
end $$;

-- Lets jobs with a group be claimed whose time has come, at most so many of each job type. Returns how many. Not done by the claim: one
-- statement cannot change a row twice.
create function piecework.promote(most int) returns int language plpgsql as $$
declare
  of_type text := '';
  promoted int;
  total int := 0;
begin
  loop
    select j.job_type into of_type from piecework.job j
    where j.state = 'pending' and j.group_state = 1 and j.job_type > of_type
    order by j.job_type limit 1;
    exit when not found;
    update piecework.job j set group_state = 2
    where j.id = any (array(
      select l.id from piecework.job l
      where l.state = 'pending' and l.group_state = 1 and l.job_type = of_type and l.due_at <= now()
      order by l.due_at limit most for update skip locked));
    get diagnostics promoted = row_count;
    total := total + promoted;
  end loop;
  return total;
end $$;

-- Decides about what was noted, at most `most` notes. Returns how many notes were dealt with: those put off do not count, so that
-- nobody asks again at once. Key locks before row locks, and no wait for a row: a finish has rows while it waits for keys.
create or replace function piecework.settle(most int) returns int language plpgsql as $$
declare
  keys text[];
  batches bigint[];
  notes int;
begin
  with gone as (
    delete from piecework.key_todo t
    where t.ctid = any (array(select n.ctid from piecework.key_todo n limit most for update skip locked))
    returning t.ordering_key, t.batch)
  select count(*), array_agg(distinct g.ordering_key) filter (where g.ordering_key is not null),
         array_agg(distinct g.batch) filter (where g.batch is not null)
  into notes, keys, batches from gone g;
  if keys is not null then
    perform piecework.lock_keys(keys);
    notes := notes - piecework.unblock(keys);
  end if;
  if batches is not null then
    perform piecework.end_batches(batches);
  end if;
  return notes;
end $$;

-- Functions that gain a parameter are made anew; whoever could execute them can execute the new ones.
create table piecework.grant_before as
select p.proname, a.grantee, a.is_grantable
from pg_proc p cross join lateral aclexplode(p.proacl) a
where p.pronamespace = 'piecework'::regnamespace and p.proname in ('enqueue', 'publish') and a.grantee not in (0, p.proowner);
drop function piecework.enqueue(text, jsonb, timestamptz, interval, int, int, bigint, text, interval, text);
drop function piecework.publish(text, jsonb, timestamptz, interval, int, int, text, interval, text);

-- Enqueues one job and returns its id. Use it inside your own transaction: the job exists when, and only when, that commits.
--   due_at        not before this time          } one of the two; now when neither is given
--   delay         not before this much later    }
--   priority      1 first to 4 last
--   max_attempts  how often it may be tried before it fails for good
--   parent        the job that this one follows from; it belongs to the same chain
--   unique_key    at most one pending or running job of the type has this key: when there is one already, nothing is enqueued
--                 and its id is returned
--   unique_for    the key stays taken this long from now, also when its job has ended by then
--   ordering_key  jobs with the same key, of whatever type, run one after another in the order of their ids, retries included:
--                 none starts before the one before it is done, has failed for good or was cancelled
--   group_key     whom the job is for (a tenant, an account): jobs of a type take turns between groups, and a plugin's limits
--                 for groups hold for each
-- Raises 22023 (invalid_parameter_value) with the reason when something is wrong.
create function piecework.enqueue(
  job_type text, payload jsonb default '{}', due_at timestamptz default null, delay interval default null,
  priority int default 2, max_attempts int default 5, parent bigint default null,
  unique_key text default null, unique_for interval default null, ordering_key text default null,
  group_key text default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  due timestamptz;
  new_id bigint;
  winner bigint;
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
  if length(enqueue.unique_key) not between 1 and 500 then
    raise exception using errcode = '22023', message = 'a unique key has 1 to 500 characters';
  end if;
  if length(enqueue.ordering_key) not between 1 and 500 then
    raise exception using errcode = '22023', message = 'an ordering key has 1 to 500 characters';
  end if;
  if length(enqueue.group_key) not between 1 and 500 then
    raise exception using errcode = '22023', message = 'a group key has 1 to 500 characters';
  end if;
  if enqueue.unique_for is not null and (enqueue.unique_key is null or enqueue.unique_for <= interval '0' or enqueue.unique_for > interval '3600 days') then
    raise exception using errcode = '22023', message = 'unique_for is a time of up to 3600 days, and needs a unique_key';
  end if;

  -- A job that vanishes between two looks, because it ended, makes room: so this is tried again.
  for try in 1 .. 100 loop
    if enqueue.unique_key is not null then
      select j.id into winner from piecework.job j where j.job_type = enqueue.job_type and j.unique_key = enqueue.unique_key;
      if found then
        return winner;
      end if;
      -- The window belongs to the key, whoever asks.
      select w.job_id into winner from piecework.unique_window w
      where w.job_type = enqueue.job_type and w.unique_key = enqueue.unique_key and w.until > clock_timestamp();
      if found then
        return winner;
      end if;
    end if;
    insert into piecework.job (job_type, payload, due_at, priority, max_attempts, parent, root, unique_key, ordering_key, blocked,
                               group_key, group_state)
    values (enqueue.job_type, enqueue.payload, due, enqueue.priority, enqueue.max_attempts, enqueue.parent,
            case when enqueue.parent is not null then piecework.root_of(enqueue.parent) end, enqueue.unique_key, enqueue.ordering_key,
            enqueue.ordering_key is not null or enqueue.group_key is not null,
            enqueue.group_key,
            case when enqueue.group_key is null then null when enqueue.ordering_key is not null then 0
                 when due > clock_timestamp() then 1 else 2 end)
    -- Waits for a transaction that is just enqueueing the same key: it wins when it commits, this one when it rolls back.
    on conflict (job_type, unique_key) where unique_key is not null do nothing
    returning id into new_id;
    if found then
      exit;
    end if;
    select j.id into winner from piecework.job j
    where j.job_type = enqueue.job_type and j.unique_key = enqueue.unique_key;
    if found then
      return winner;
    end if;
  end loop;
  if new_id is null then
    raise exception using errcode = '40001', message = format('the job with the unique key %s came and went a hundred times', enqueue.unique_key),
      hint = 'Try again.';
  end if;
  if enqueue.unique_for is not null then
    insert into piecework.unique_window as w (job_type, unique_key, job_id, until)
    values (enqueue.job_type, enqueue.unique_key, new_id, clock_timestamp() + enqueue.unique_for)
    on conflict (job_type, unique_key) do update set job_id = excluded.job_id, until = excluded.until
      where w.until <= clock_timestamp();
    if not found then
      -- Another one enqueued it, and its job has ended, since the first look.
      delete from piecework.job j where j.id = new_id;
      select w.job_id into winner from piecework.unique_window w
      where w.job_type = enqueue.job_type and w.unique_key = enqueue.unique_key;
      return winner;
    end if;
  end if;
  if enqueue.ordering_key is not null then
    insert into piecework.key_todo (ordering_key) values (enqueue.ordering_key);
  end if;
  -- A sleeping runner looks at the table every few seconds anyway: a job due later than that needs no wake-up.
  if due < clock_timestamp() + interval '10 seconds' then
    perform piecework.wake(array[enqueue.job_type]);
  end if;
  return new_id;
end $$;

-- Enqueues many jobs from a JSON array and returns their ids in its order. Each element is an object with `job_type` and,
-- as wanted, `payload`, `due_at`, `delay` (seconds), `priority`, `max_attempts`, `parent`, `unique_key`, `unique_for` (seconds),
-- `ordering_key`, `group_key`, which mean the same as for `enqueue`; `root` is for runners, which know it, and `batch` for enqueue_batch.
-- All or nothing. Raises 22023 and names the element, counted from 0, when something is wrong.
create or replace function piecework.enqueue_many(jobs jsonb) returns setof bigint language plpgsql as $$
#variable_conflict use_column
declare
  known constant text[] := array['job_type', 'payload', 'due_at', 'delay', 'priority', 'max_attempts', 'parent', 'root', 'unique_key', 'unique_for', 'ordering_key',
    'group_key', 'batch'];
  bad text;
  place bigint;
  element jsonb;
  ids bigint[];
  ordered boolean;
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
          and coalesce(jsonb_typeof(element -> 'root'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'unique_for'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'unique_key'), 'null') in ('null', 'string')
          and coalesce(jsonb_typeof(element -> 'ordering_key'), 'null') in ('null', 'string')
          and coalesce(jsonb_typeof(element -> 'group_key'), 'null') in ('null', 'string')
          and coalesce(jsonb_typeof(element -> 'batch'), 'null') in ('null', 'number')
          and coalesce(jsonb_typeof(element -> 'due_at'), 'null') = 'null');
    bad := case
      when coalesce(jsonb_typeof(element -> 'delay'), 'null') not in ('null', 'number') then 'delay must be a number of seconds, 0 or more'
      when coalesce(jsonb_typeof(element -> 'priority'), 'null') not in ('null', 'number') then 'priority must be 1 (first) to 4 (last)'
      when coalesce(jsonb_typeof(element -> 'max_attempts'), 'null') not in ('null', 'number') then 'max_attempts must be 1 to 100000'
      when coalesce(jsonb_typeof(element -> 'parent'), 'null') not in ('null', 'number') then 'parent must be the id of a job'
      when coalesce(jsonb_typeof(element -> 'root'), 'null') not in ('null', 'number') then 'root must be the id of a job'
      when coalesce(jsonb_typeof(element -> 'unique_for'), 'null') not in ('null', 'number') then 'unique_for must be a number of seconds'
      when coalesce(jsonb_typeof(element -> 'unique_key'), 'null') not in ('null', 'string') then 'unique_key must be text'
      when coalesce(jsonb_typeof(element -> 'ordering_key'), 'null') not in ('null', 'string') then 'ordering_key must be text'
      when coalesce(jsonb_typeof(element -> 'group_key'), 'null') not in ('null', 'string') then 'group_key must be text'
      when coalesce(jsonb_typeof(element -> 'batch'), 'null') not in ('null', 'number') then 'batch must be the id of a job'
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
      when (e.job - known) <> '{}'::jsonb
        then format('`%s` is not known; known are %s', (select k from jsonb_object_keys(e.job - known) k limit 1),
                    array_to_string(array_remove(array_remove(known, 'root'), 'batch'), ', '))
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
      when (e.job ->> 'root')::numeric not between -9223372036854775808 and 9223372036854775807
        or (e.job ->> 'root')::numeric <> trunc((e.job ->> 'root')::numeric) then 'root must be the id of a job'
      when length(e.job ->> 'unique_key') not between 1 and 500 then 'unique_key must have 1 to 500 characters'
      when length(e.job ->> 'ordering_key') not between 1 and 500 then 'ordering_key must have 1 to 500 characters'
      when length(e.job ->> 'group_key') not between 1 and 500 then 'group_key must have 1 to 500 characters'
      when (e.job ->> 'unique_for')::numeric not between 0.001 and 311040000 or ((e.job -> 'unique_for') <> 'null' and coalesce(e.job -> 'unique_key', 'null') = 'null')
        then 'unique_for is a number of seconds up to 311040000 (3600 days), and needs a unique_key'
    end as problem) p
  where p.problem is not null
  order by e.n limit 1;
  if bad is not null then
    raise exception using errcode = '22023', message = bad;
  end if;
  if exists (select from jsonb_array_elements(jobs) as e (job) where coalesce(e.job -> 'unique_key', 'null') <> 'null') then
    -- One by one, since an element may find the one before it. In the order of the unique keys, so that two such calls never wait
    -- for each other in a circle; with ordering keys in that of the array, which those must keep.
    ids := array_fill(null::bigint, array[jsonb_array_length(jobs)]);
    ordered := exists (select from jsonb_array_elements(jobs) as e (job) where e.job ->> 'ordering_key' is not null);
    for element, place in
      select e.job, e.n from jsonb_array_elements(jobs) with ordinality as e (job, n)
      order by case when ordered then null else e.job ->> 'job_type' end, case when ordered then null else e.job ->> 'unique_key' end, e.n
    loop
      ids[place] := piecework.enqueue(
        job_type => element ->> 'job_type', payload => coalesce(element -> 'payload', '{}'),
        due_at => (element ->> 'due_at')::timestamptz, delay => make_interval(secs => (element ->> 'delay')::float8),
        priority => coalesce((element ->> 'priority')::numeric::int, 2),
        max_attempts => coalesce((element ->> 'max_attempts')::numeric::int, 5),
        parent => (element ->> 'parent')::numeric::bigint, unique_key => element ->> 'unique_key',
        unique_for => make_interval(secs => (element ->> 'unique_for')::float8), ordering_key => element ->> 'ordering_key',
        group_key => element ->> 'group_key');
    end loop;
    -- A job that had the key before is waited for like the others, unless it belongs to another batch.
    update piecework.job j set batch = (element ->> 'batch')::numeric::bigint
    where j.id = any (ids) and j.batch is null and element ->> 'batch' is not null;
    return query select u.id from unnest(ids) with ordinality as u (id, n) order by u.n;
    return;
  end if;
  insert into piecework.key_todo (ordering_key)
  select distinct e.job ->> 'ordering_key' from jsonb_array_elements(jobs) as e (job) where e.job ->> 'ordering_key' is not null;
  return query
    insert into piecework.job (job_type, payload, due_at, priority, max_attempts, ordering_key, blocked, parent, root, batch,
                               group_key, group_state)
    select e.job ->> 'job_type', coalesce(e.job -> 'payload', '{}'),
           coalesce((e.job ->> 'due_at')::timestamptz,
                    clock_timestamp() + make_interval(secs => coalesce((e.job ->> 'delay')::float8, 0))),
           coalesce((e.job ->> 'priority')::numeric::smallint, 2), coalesce((e.job ->> 'max_attempts')::numeric::int, 5),
           e.job ->> 'ordering_key', e.job ->> 'ordering_key' is not null or e.job ->> 'group_key' is not null,
           (e.job ->> 'parent')::numeric::bigint,
           case when e.job ? 'root' then (e.job ->> 'root')::numeric::bigint when e.job ->> 'parent' is not null then piecework.root_of((e.job ->> 'parent')::numeric::bigint) end,
           (e.job ->> 'batch')::numeric::bigint, e.job ->> 'group_key',
           case when e.job ->> 'group_key' is null then null when e.job ->> 'ordering_key' is not null then 0
                when (e.job ->> 'due_at')::timestamptz > clock_timestamp() or (e.job ->> 'delay')::float8 > 0 then 1 else 2 end
    from jsonb_array_elements(jobs) with ordinality as e (job, n)
    order by e.n
    returning id;
  perform piecework.wake(array(select distinct e.job ->> 'job_type' from jsonb_array_elements(jobs) as e (job)));
end $$;

-- Enqueues one job for each job type that is subscribed to the topic, all in the caller's transaction, with the options of
-- `enqueue`. Returns how many jobs; 0 when nobody is subscribed. With a unique key, types that have such a job already are not
-- counted out: each has one.
create function piecework.publish(
  topic text, payload jsonb default '{}', due_at timestamptz default null, delay interval default null,
  priority int default 2, max_attempts int default 5, unique_key text default null, unique_for interval default null,
  ordering_key text default null, group_key text default null
) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  subscriber text;
  jobs bigint := 0;
begin
  if coalesce(length(publish.topic), 0) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'a topic has 1 to 200 characters';
  end if;
  for subscriber in select s.job_type from piecework.subscription s where s.topic = publish.topic order by s.job_type loop
    perform piecework.enqueue(subscriber, publish.payload, publish.due_at, publish.delay, publish.priority, publish.max_attempts,
                              null, publish.unique_key, publish.unique_for, publish.ordering_key, publish.group_key);
    jobs := jobs + 1;
  end loop;
  return jobs;
end $$;

-- Enqueues a batch: the jobs of a JSON array as for `enqueue_many`, and one more job, given as an object like theirs, that starts when
-- all of them have ended, however they ended. Returns the id of that job, which is the id of the batch: `batch` of its jobs in
-- piecework.jobs. A job whose unique key another pending or running job has is not enqueued, and the other one is waited for,
-- unless it belongs to another batch. Raises 22023 with the reason when something is wrong.
create function piecework.enqueue_batch(jobs jsonb, and_then jsonb) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  last bigint;
begin
  if jsonb_typeof(and_then) is distinct from 'object' then
    raise exception using errcode = '22023', message = 'and_then is the job that runs when the others have ended: a JSON object';
  end if;
  if jsonb_typeof(enqueue_batch.jobs) is distinct from 'array' or exists (
    select from jsonb_array_elements(enqueue_batch.jobs) as e (job) where jsonb_typeof(e.job) <> 'object') then
    raise exception using errcode = '22023', message = 'enqueue_batch takes a JSON array of jobs, each an object';
  end if;
  if and_then ->> 'unique_key' is not null or and_then ->> 'ordering_key' is not null then
    raise exception using errcode = '22023', message = 'the job that runs when the others have ended has no unique key and no ordering key',
      hint = 'Let it enqueue a job with that key.';
  end if;
  begin
    select e.id into last from piecework.enqueue_many(jsonb_build_array(and_then)) as e (id);
  exception when invalid_parameter_value then
    raise exception using errcode = '22023', message = replace(sqlerrm, 'job 0', 'and_then');
  end;
  update piecework.job j
  set batch = j.id, blocked = true, group_state = case when j.group_key is not null then 0 end
  where j.id = last;
  perform piecework.enqueue_many((
    select coalesce(jsonb_agg(e.job || jsonb_build_object('batch', last) order by e.n), '[]')
    from jsonb_array_elements(enqueue_batch.jobs) with ordinality as e (job, n)));
  insert into piecework.key_todo (batch) values (last);
  return last;
end $$;

-- Whether a job type has pending jobs with a group that wait for nothing but their time. Ordered, so that it is an index that is read: an
-- EXISTS over a table full of such jobs is a scan to the planner, which wades through the dead rows at its head.
create function piecework.has_groups(job_type text) returns boolean language plpgsql stable as $$
#variable_conflict use_column
begin
  perform from piecework.job j
  where j.state = 'pending' and j.group_state = 2 and j.job_type = has_groups.job_type
  order by j.priority, j.group_key, j.due_at, j.id limit 1;
  if found then
    return true;
  end if;
  perform from piecework.job j
  where j.state = 'pending' and j.group_state = 1 and j.job_type = has_groups.job_type
  order by j.due_at limit 1;
  return found;
end $$;

-- Takes jobs for a runner out of those that need more than a look at the claim index: job types with limits of the fleet, and
-- types that have jobs with group keys. The rows are locked; the statement that calls this makes them running.
--
-- `wanted` is a JSON array with an object for each job type, in the order in which they are to be served:
--   job_type, want        most jobs of it
--   priorities            in the order in which they are to be served
--   marks                 low-water marks, by priority: {"at": us since 2000, "id": ...}; null for none
--   cursors               the group that was served last, by priority
--   running, group_running            most running jobs in the fleet, of the type and of a group; null or 0 for no limit
--   starts, starts_per, group_starts  most starts in this many seconds, of the type and of a group
--   oldest                no job of the type that counts has a smaller claim
-- Returns the ids with the time of their start, and for each job type a row without id whose note says: `groups` there are jobs with a group, `more` there may be
-- more to take, `due` the time of some has come (see promote), `full` the type as a whole is at a limit, `again` seconds after which a limit may allow more, `cursors` and `oldest`
-- for the next call.
--
-- Under a limit the claims of a type exclude each other, by an advisory lock until the end of the statement. What is counted is
-- read after that lock was got: a volatile function sees what was committed up to each of its statements.
create function piecework.take(wanted jsonb, most int) returns table (job_type text, id bigint, note jsonb, at timestamptz) language plpgsql as $$
#variable_conflict use_column
declare
  w record;
  left_over int := most;
  level smallint;
  ids bigint[];
  room int;
  used int;
  first_claim bigint;
  again float8;
  more boolean;
  capped boolean;
  groups boolean;
  cursors jsonb;
  mark_at timestamptz;
  mark_id bigint;
  got int;
  share int;
  portion int;
  place text;
  plain bigint[];
  left_by_plain boolean;
  origin text;
  wrapped boolean;
  visits int;
  ready int;
  length_of_slot float8;
  this_slot timestamptz;
  slot_ends timestamptz;
begin
  if most <= 0 then
    return;
  end if;
  -- In one order, so that two runners never wait for each other in a circle.
  perform count(pg_advisory_xact_lock(1886218088, l.lock))
  from (select distinct hashtext(e.w ->> 'job_type') as lock
        from jsonb_array_elements(wanted) as e (w)
        where (e.w ->> 'running')::int > 0 or (e.w ->> 'group_running')::int > 0 or (e.w ->> 'starts')::int > 0 or (e.w ->> 'group_starts')::int > 0
        order by 1) l;
  -- Nobody else claims under these limits from here on, so this is when these jobs start.
  at := clock_timestamp();
  for w in
    select * from jsonb_to_recordset(wanted) as w (
      job_type text, want int, priorities smallint[], marks jsonb, cursors jsonb, running int, group_running int, starts int,
      group_starts int, starts_per float8, oldest bigint)
  loop
    -- A handful of rows, read once for each type.
    continue when exists (select from piecework.paused p where p.job_type = w.job_type);
    room := least(w.want, left_over);
    again := null;
    more := false;
    capped := false;
    cursors := coalesce(w.cursors, '{}');
    first_claim := w.oldest;
    if w.running > 0 or w.group_running > 0 then
      select count(*), min(j.claim) into used, first_claim
      from piecework.job j
      where j.counted and j.state = 'running' and j.job_type = w.job_type and j.claim >= coalesce(w.oldest, 0);
      -- None runs: none that will run has a claim up to this one.
      first_claim := coalesce(first_claim, (select last_value from piecework.claim_seq));
      if w.running > 0 and w.running - used < room then
        room := greatest(w.running - used, 0);
        capped := true;
        again := 0.2;
      end if;
    end if;
    if w.starts > 0 or w.group_starts > 0 then
      length_of_slot := w.starts_per / 10;
      this_slot := to_timestamp(floor(extract(epoch from at) / length_of_slot) * length_of_slot);
      slot_ends := this_slot + make_interval(secs => length_of_slot);
    end if;
    if w.starts > 0 then
      select coalesce(sum(s.n), 0) into used from piecework.start_count s
      where s.job_type = w.job_type and s.group_key = '' and s.slot >= this_slot - make_interval(secs => w.starts_per);
      if w.starts - used < room then
        room := greatest(w.starts - used, 0);
        capped := true;
        again := greatest(coalesce(again, 0), extract(epoch from slot_ends - clock_timestamp()), 0.001);
      end if;
    end if;

    groups := piecework.has_groups(w.job_type);
    got := 0;

    foreach level in array w.priorities loop
      exit when room <= got;
      -- Jobs without a group count as one more group, as far as half of the room.
      portion := case when groups then floor((room - got) / 2.0 + random())::int else room - got end;
      mark_at := coalesce(timestamptz '2000-01-01 00:00:00+00' + (w.marks -> level::text ->> 'at')::float8 * interval '1 microsecond', '-infinity');
      mark_id := coalesce((w.marks -> level::text ->> 'id')::bigint, 0);
      select array_agg(t.id) into ids from (
        select j.id from piecework.job j
        where j.state = 'pending' and not j.blocked and j.job_type = w.job_type and j.priority = level
          and j.due_at <= now() and (j.due_at, j.id) > (mark_at, mark_id)
        order by j.due_at, j.id limit portion for update skip locked) t;
      got := got + coalesce(cardinality(ids), 0);
      more := more or (portion > 0 and cardinality(ids) >= portion);
      return query select w.job_type, t.id, null::jsonb, at from unnest(ids) as t (id);
      continue when not groups;
      plain := coalesce(ids, '{}');
      -- What the groups leave is theirs too: fewer of them were asked for than there is room.
      left_by_plain := cardinality(plain) >= portion;

      -- How many groups there are, as far as it matters for the share of each.
      place := coalesce(cursors ->> level::text, '');
      with recursive ahead as (
        (select j.group_key, 1 as n from piecework.job j
         where j.state = 'pending' and j.group_state = 2 and j.job_type = w.job_type and j.priority = level
         order by j.group_key limit 1)
        union all
        select k.group_key, a.n + 1 from ahead a cross join lateral (
          select j.group_key from piecework.job j
          where j.state = 'pending' and j.group_state = 2 and j.job_type = w.job_type and j.priority = level
            and j.group_key > a.group_key
          order by j.group_key limit 1) k
        where a.n < 8)
      select count(*) into ready from ahead;
      share := ceil((room - got)::float8 / greatest(ready, 1))::int;
      origin := place;
      wrapped := false;
      visits := 0;
      loop
        exit when room <= got or ready = 0;
        select j.group_key into place from piecework.job j
        where j.state = 'pending' and j.group_state = 2 and j.job_type = w.job_type and j.priority = level and j.group_key > place
        order by j.group_key limit 1;
        if not found then
          exit when wrapped;
          wrapped := true;
          place := '';
          continue;
        end if;
        exit when wrapped and place > origin;
        -- Groups that are full are walked past; a claim does not walk for ever.
        visits := visits + 1;
        if visits > 256 then
          more := true;
          again := least(coalesce(again, 0.05), 0.05);
          exit;
        end if;
        cursors := jsonb_set(cursors, array[level::text], to_jsonb(place));
        portion := room - got;
        if w.group_running > 0 then
          select count(*) into used from piecework.job j
          where j.counted and j.state = 'running' and j.group_key is not null
            and j.job_type = w.job_type and j.group_key = place and j.claim >= coalesce(w.oldest, 0);
          if w.group_running - used < portion then
            portion := greatest(w.group_running - used, 0);
            again := coalesce(again, 0.2);
          end if;
        end if;
        if w.group_starts > 0 then
          select coalesce(sum(s.n), 0) into used from piecework.start_count s
          where s.job_type = w.job_type and s.group_key = place and s.slot >= this_slot - make_interval(secs => w.starts_per);
          if w.group_starts - used < portion then
            portion := greatest(w.group_starts - used, 0);
            again := coalesce(again, greatest(extract(epoch from slot_ends - clock_timestamp()), 0.001));
          end if;
        end if;
        continue when portion = 0;
        if portion > share then
          portion := share;
          more := true;
        end if;
        select array_agg(t.id) into ids from (
          select j.id from piecework.job j
          where j.state = 'pending' and j.group_state = 2 and j.job_type = w.job_type and j.priority = level and j.group_key = place
          order by j.due_at, j.id limit portion for update skip locked) t;
        continue when ids is null;
        got := got + cardinality(ids);
        return query select w.job_type, t.id, null::jsonb, at from unnest(ids) as t (id);
        if w.group_starts > 0 then
          perform piecework.count_starts(w.job_type, place, this_slot, w.starts_per, cardinality(ids));
        end if;
      end loop;
      if left_by_plain and room > got then
        select array_agg(t.id) into ids from (
          select j.id from piecework.job j
          where j.state = 'pending' and not j.blocked and j.job_type = w.job_type and j.priority = level
            and j.due_at <= now() and (j.due_at, j.id) > (mark_at, mark_id) and j.id <> all (plain)
          order by j.due_at, j.id limit room - got for update skip locked) t;
        got := got + coalesce(cardinality(ids), 0);
        return query select w.job_type, t.id, null::jsonb, at from unnest(ids) as t (id);
      end if;
    end loop;
    if w.starts > 0 and got > 0 then
      perform piecework.count_starts(w.job_type, '', this_slot, w.starts_per, got);
    end if;
    left_over := left_over - got;
    return query select w.job_type, null::bigint, jsonb_strip_nulls(jsonb_build_object(
      'groups', groups, 'more', more and got > 0 or room <= got and not capped, 'full', room <= got and capped,
      'again', again, 'cursors', cursors, 'oldest', first_claim, 'due', (
        select j.due_at <= now() from piecework.job j
        where j.state = 'pending' and j.group_state = 1 and j.job_type = w.job_type order by j.due_at limit 1))), at;
  end loop;
end $$;

-- Counts starts in a slot, and forgets slots of the same that are over. The claims of the type exclude each other.
create function piecework.count_starts(job_type text, group_key text, this_slot timestamptz, per float8, starts int)
returns void language plpgsql as $$
#variable_conflict use_column
begin
  update piecework.start_count s set n = s.n + starts
  where s.job_type = count_starts.job_type and s.group_key = count_starts.group_key and s.slot = this_slot;
  if found then
    return;
  end if;
  delete from piecework.start_count s
  where s.job_type = count_starts.job_type and s.group_key = count_starts.group_key and s.slot < this_slot - make_interval(secs => per);
  insert into piecework.start_count (job_type, group_key, slot, until, n)
  values (count_starts.job_type, count_starts.group_key, this_slot, this_slot + make_interval(secs => per * 1.1 + 1), starts);
end $$;

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
exception when lock_not_available or deadlock_detected then
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
      payload, parent, root, failure, last_error, claim, runner, attempts, output, progress, checkpoint, trace_context, group_key, batch)
    select
      gone.id, gone.job_type, 'cancelled', gone.priority, gone.due_at, gone.attempt, gone.max_attempts, gone.unique_key,
      gone.ordering_key, gone.enqueued_at, gone.started_at, gone.payload, gone.parent, gone.root, 'cancelled', gone.last_error,
      gone.claim, gone.runner, gone.attempts, gone.output, gone.progress, gone.checkpoint, gone.trace_context, gone.group_key,
      gone.batch
    where not exists (select from piecework.retention r where r.state = 'cancelled' and r.keep = interval '0');
    if gone.ordering_key is not null and (not gone.blocked or gone.group_state > 0) then
      insert into piecework.key_todo (ordering_key) values (gone.ordering_key);
      perform piecework.wake(array(
        select j.job_type from piecework.job j where j.ordering_key = gone.ordering_key order by j.id limit 1));
    end if;
    if gone.batch is not null and gone.batch <> gone.id then
      insert into piecework.key_todo (batch) values (gone.batch);
      perform piecework.wake(array(select j.job_type from piecework.job j where j.id = gone.batch));
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
    attempts, output, progress, checkpoint, trace_context, blocked, group_key, group_state, batch)
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
    old.ordering_key is not null or old.group_key is not null, old.group_key,
    case when old.group_key is null then null when old.ordering_key is not null then 0 else 2 end, old.batch);
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

-- The text of a payload, for a runner that claims its job; null when it is larger than 1 MiB. The enqueue functions let none of
-- those in, but whoever writes to the table can, and 144 KB of numbers such as 1e131071 are more text than PostgreSQL can make:
-- without the handler one such row would fail every claim that meets it. 0.7 us a job more than the plain cast.
create function piecework.payload_text(payload jsonb) returns text language plpgsql stable as $$
declare
  body text;
begin
  -- 1 MiB of text is at most four times as much in binary form, in numbers of one digit. The array is a way to ask for the size
  -- before compression: 7 ms for 20 MiB, in place of 80 ms for the text.
  if pg_column_size(payload_text.payload) > 8192 and pg_column_size(array[payload_text.payload]) > 5242880 then
    return null;
  end if;
  body := payload_text.payload::text;
  return case when octet_length(body) <= 1048576 then body end;
exception when out_of_memory or program_limit_exceeded then
  return null;
end $$;

-- Runners need not own the schema: partitions are made and dropped with the rights of its owner.
alter function piecework.make_history_partitions(int) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.drop_old_history(int) security definer set search_path = pg_catalog, pg_temp;

-- Schedules: jobs at the times of a cron expression or at a fixed interval. Safe beside runners of version 2, which know nothing of
-- them and give no ticks.

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

-- The same view; what is new comes last. `blocked` is about ordering keys and batches.
create or replace view piecework.jobs as
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         null::timestamptz as finished_at, payload, null::jsonb as result, parent, root,
         null::text as failure, last_error, runner, null::bytea as plugin, null::bigint as run_us, null::bigint as cpu_us,
         null::bigint as fuel, null::bigint as peak_memory, attempts, output, progress,
         null::int as http_calls, null::bigint as http_bytes, null::bigint as http_us, checkpoint,
         blocked and coalesce(group_state, 0) = 0 as blocked, group_key::text, batch
  from piecework.job
  union all
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         finished_at, payload, result, parent, root,
         failure, last_error, runner, plugin, run_us, cpu_us,
         fuel, peak_memory, attempts, output, progress, http_calls, http_bytes, http_us, checkpoint, false, group_key, batch
  from piecework.job_history;

alter function piecework.enqueue(text, jsonb, timestamptz, interval, int, int, bigint, text, interval, text, text)
  security definer set search_path = pg_catalog, pg_temp;
alter function piecework.enqueue_many(jsonb) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.enqueue_batch(jsonb, jsonb) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.publish(text, jsonb, timestamptz, interval, int, int, text, interval, text, text)
  security definer set search_path = pg_catalog, pg_temp;
revoke execute on all functions in schema piecework from public;
-- Part of `retry` and `retry_all`; it works with the rights of whoever calls those, who need no new grant so.
grant execute on function piecework.start_anew to public;
do $$
declare
  kept record;
begin
  for kept in select g.proname, r.rolname, g.is_grantable from piecework.grant_before g join pg_roles r on r.oid = g.grantee loop
    execute format('grant execute on function piecework.%I to %I %s', kept.proname, kept.rolname,
                   case when kept.is_grantable then 'with grant option' else '' end);
  end loop;
end $$;
drop table piecework.grant_before;
