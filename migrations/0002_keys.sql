-- Unique and ordering keys, cancelling, pausing, retrying, topics, the chain that a job belongs to, and what an attempt used of HTTP.
-- Safe while runners of version 1 work: they go on with the functions that they know, whose meaning does not change; a pause is not
-- heeded by them, and a key whose job they end stands still until a newer runner looks (see note_idle_keys.sql).

alter table piecework.job_history
  add column http_calls int,
  add column http_bytes bigint,
  add column http_us bigint,
  -- Kept for jobs that did not end well: should one of them be tried again, it goes on where it was.
  add column checkpoint jsonb;
-- Keyed jobs are noted elsewhere (key_todo).
alter table piecework.job drop column fresh;

-- Job types that nobody starts at the moment.
create table piecework.paused (
  job_type      text        primary key check (length(job_type) between 1 and 200),
  since         timestamptz not null default clock_timestamp()
);

-- Unique keys whose window reaches beyond the end of their job: until then the key stays taken.
create table piecework.unique_window (
  job_type      text        not null,
  unique_key    text        not null,
  job_id        bigint      not null,
  until         timestamptz not null check (isfinite(until)),
  primary key (job_type, unique_key)
);
create index unique_window_until on piecework.unique_window (until);

-- Which job types hear of a topic.
create table piecework.subscription (
  topic         text        not null check (length(topic) between 1 and 200),
  job_type      text        not null check (length(job_type) between 1 and 200),
  primary key (topic, job_type)
);

-- Ordering keys. Jobs with the same key run one after another, in the order of their ids. A keyed job is inserted `blocked`, which
-- keeps it out of the claim index, and its key is noted here: so enqueueing takes no lock and runs no trigger. Runners settle the
-- noted keys shortly before they claim: of each key that has no unblocked job they unblock the first. When a keyed job ends, the
-- transaction that writes its end does the same for its key. The two exclude each other by an advisory lock for each bucket of
-- keys, which only a runner's short transaction holds. Whoever else ends a keyed job (a cancel in somebody's long transaction,
-- say) only notes its key.
create table piecework.key_todo (
  ordering_key  text        not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Locks keys, for the transaction. In one order, and a bounded number of locks whatever the number of keys.
create function piecework.lock_keys(keys text[]) returns void language sql as $$
  select count(pg_advisory_xact_lock(1886218087, b.bucket))
  from (select distinct (hashtextextended(k, 0) & 4095)::int as bucket from unnest(keys) k order by 1) b
$$;

-- Unblocks the first job of each of these keys that has no unblocked one. The keys are locked. A job that somebody else has
-- locked, to cancel it perhaps, is waited for by nobody: its key is looked at again later. Returns how many keys that were.
create function piecework.unblock(keys text[]) returns int language plpgsql as $$
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
    select true as taken from piecework.job j where j.ordering_key = k.key and not j.blocked limit 1) o on true
  where o.taken is null;
  if heads is null then
    return 0;
  end if;
  select array_agg(f.id) into free
  from (select j.id from piecework.job j where j.id = any (heads) and j.blocked for update skip locked) f;
  update piecework.job j
  -- Ahead of the low-water marks of the runners, whatever its time was.
  set blocked = false, due_at = greatest(j.due_at, clock_timestamp())
  where j.id = any (free);
  -- Others may be the only ones who serve them, and asleep.
  perform piecework.wake(array(select distinct j.job_type from piecework.job j where j.id = any (free)));
  if cardinality(free) = cardinality(heads) then
    return 0;
  end if;
  insert into piecework.key_todo (ordering_key)
  select j.ordering_key from piecework.job j where j.id = any (heads) and j.blocked;
  get diagnostics put_off = row_count;
  return put_off;
end $$;

-- Decides about the noted keys, at most `most` notes. Returns how many notes were dealt with: those put off do not count, so that
-- nobody asks again at once. Key locks before row locks, and no wait
-- for a row: a finish has rows while it waits for keys.
create function piecework.settle(most int) returns int language plpgsql as $$
declare
  keys text[];
  notes int;
begin
  with gone as (
    delete from piecework.key_todo t
    where t.ctid = any (array(select n.ctid from piecework.key_todo n limit most for update skip locked))
    returning t.ordering_key)
  select count(*), array_agg(distinct g.ordering_key) into notes, keys from gone g;
  if notes > 0 then
    perform piecework.lock_keys(keys);
    notes := notes - piecework.unblock(keys);
  end if;
  return notes;
end $$;

-- Cancels a job, for good: whatever its handler returns later changes nothing, no follow-up of it is enqueued, and no attempt
-- follows. A handler that runs is stopped within two seconds. Returns the state that the job has from now on: `cancelled`, or
-- `done` or `failed` when it had ended before. Null: there is no such job (any more).
create function piecework.cancel(id bigint) returns text language plpgsql as $$
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
    values (
      gone.id, gone.job_type, 'cancelled', gone.priority, gone.due_at, gone.attempt, gone.max_attempts, gone.unique_key,
      gone.ordering_key, gone.enqueued_at, gone.started_at, gone.payload, gone.parent, gone.root, 'cancelled', gone.last_error,
      gone.claim, gone.runner, gone.attempts, gone.output, gone.progress, gone.checkpoint, gone.trace_context);
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
-- Raises 22023 (invalid_parameter_value) with the reason when something is wrong.
drop function piecework.enqueue(text, jsonb, timestamptz, interval, int, int, bigint);
create function piecework.enqueue(
  job_type text, payload jsonb default '{}', due_at timestamptz default null, delay interval default null,
  priority int default 2, max_attempts int default 5, parent bigint default null,
  unique_key text default null, unique_for interval default null, ordering_key text default null
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
    insert into piecework.job (job_type, payload, due_at, priority, max_attempts, parent, root, unique_key, ordering_key, blocked)
    values (enqueue.job_type, enqueue.payload, due, enqueue.priority, enqueue.max_attempts, enqueue.parent,
            case when enqueue.parent is not null then piecework.root_of(enqueue.parent) end, enqueue.unique_key, enqueue.ordering_key,
            enqueue.ordering_key is not null)
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

-- The first job of the chain that a job belongs to: the job itself when it follows from none. Looks into the history, all days of
-- it, only for a job that has ended.
create function piecework.root_of(job bigint) returns bigint language plpgsql stable as $$
declare
  root bigint;
begin
  select coalesce(j.root, j.id) into root from piecework.job j where j.id = root_of.job;
  if not found then
    select coalesce(h.root, h.id) into root from piecework.job_history h where h.id = root_of.job order by h.finished_at desc limit 1;
  end if;
  return coalesce(root, root_of.job);
end $$;

-- Enqueues many jobs from a JSON array and returns their ids in its order. Each element is an object with `job_type` and,
-- as wanted, `payload`, `due_at`, `delay` (seconds), `priority`, `max_attempts`, `parent`, `unique_key`, `unique_for` (seconds),
-- `ordering_key`, which mean the same as for `enqueue`; `root` is for runners, which know it.
-- All or nothing. Raises 22023 and names the element, counted from 0, when something is wrong.
create or replace function piecework.enqueue_many(jobs jsonb) returns setof bigint language plpgsql as $$
#variable_conflict use_column
declare
  known constant text[] := array['job_type', 'payload', 'due_at', 'delay', 'priority', 'max_attempts', 'parent', 'root', 'unique_key', 'unique_for', 'ordering_key'];
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
                    array_to_string(array_remove(known, 'root'), ', '))
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
        unique_for => make_interval(secs => (element ->> 'unique_for')::float8), ordering_key => element ->> 'ordering_key');
    end loop;
    return query select u.id from unnest(ids) with ordinality as u (id, n) order by u.n;
    return;
  end if;
  insert into piecework.key_todo (ordering_key)
  select distinct e.job ->> 'ordering_key' from jsonb_array_elements(jobs) as e (job) where e.job ->> 'ordering_key' is not null;
  return query
    insert into piecework.job (job_type, payload, due_at, priority, max_attempts, ordering_key, blocked, parent, root)
    select e.job ->> 'job_type', coalesce(e.job -> 'payload', '{}'),
           coalesce((e.job ->> 'due_at')::timestamptz,
                    clock_timestamp() + make_interval(secs => coalesce((e.job ->> 'delay')::float8, 0))),
           coalesce((e.job ->> 'priority')::numeric::smallint, 2), coalesce((e.job ->> 'max_attempts')::numeric::int, 5),
           e.job ->> 'ordering_key', e.job ->> 'ordering_key' is not null,
           (e.job ->> 'parent')::numeric::bigint,
           case when e.job ? 'root' then (e.job ->> 'root')::numeric::bigint when e.job ->> 'parent' is not null then piecework.root_of((e.job ->> 'parent')::numeric::bigint) end
    from jsonb_array_elements(jobs) with ordinality as e (job, n)
    order by e.n
    returning id;
  perform piecework.wake(array(select distinct e.job ->> 'job_type' from jsonb_array_elements(jobs) as e (job)));
end $$;

-- Cancels the pending or running job of this type that has this unique key, and every pending or running job of its chain
-- (those that follow from the same first job). No step follows, also when a handler of the chain ends at this moment. Returns
-- how many jobs were cancelled; 0: nobody has the key.
create function piecework.cancel_by_key(job_type text, unique_key text) returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  first bigint;
  step bigint;
  cancelled bigint := 0;
  found_one boolean;
begin
  select coalesce(j.root, j.id) into first from piecework.job j
  where j.job_type = cancel_by_key.job_type and j.unique_key = cancel_by_key.unique_key;
  if not found then
    return 0;
  end if;
  -- A cancel waits for a finish that is being written, which may have enqueued one more step: so it is looked again until
  -- there is none.
  loop
    found_one := false;
    for step in select j.id from piecework.job j where j.id = first or j.root = first order by j.id loop
      if piecework.cancel(step) = 'cancelled' then
        cancelled := cancelled + 1;
      end if;
      found_one := true;
    end loop;
    exit when not found_one;
  end loop;
  return cancelled;
end $$;

-- Starts a job anew that has failed or was cancelled: pending and due now, with its id, payload, checkpoints and the history of
-- its errors, and all its attempts before it. Returns the state that the job has from now on: `pending`, or the one that it has
-- (`done`, `running`, ...) when there was nothing to start anew. Null: there is no such job (any more).
-- Raises 23505 when another job has taken its unique key meanwhile.
create function piecework.retry(id bigint) returns text language plpgsql as $$
#variable_conflict use_column
declare
  old piecework.job_history;
  now_state text;
begin
  delete from piecework.job_history h where h.id = retry.id and h.state in ('failed', 'cancelled') returning h.* into old;
  if not found then
    select j.state::text into now_state from piecework.jobs j where j.id = retry.id limit 1;
    return now_state;
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
  return 'pending';
exception when unique_violation then
  raise exception using errcode = '23505',
    message = format('job %s cannot be started anew: another job of type %s has its unique key %s', old.id, old.job_type, old.unique_key),
    hint = 'Cancel that one first, or let it end.';
end $$;

-- Starts jobs anew that have failed (or, with state 'cancelled', were cancelled), the oldest first: all, or those of one type, at
-- most `most`. Those whose unique key another job has taken are left. Returns how many were started anew.
create function piecework.retry_all(job_type text default null, state text default 'failed', most int default 10000)
returns bigint language plpgsql as $$
#variable_conflict use_column
declare
  job bigint;
  started bigint := 0;
begin
  if retry_all.state is null or retry_all.state not in ('failed', 'cancelled') then
    raise exception using errcode = '22023', message = format('jobs that are %s cannot be started anew', coalesce(retry_all.state, 'null')),
      hint = 'The state is failed or cancelled.';
  end if;
  for job in
    select h.id from piecework.job_history h
    where h.state = retry_all.state::piecework.job_state and (retry_all.job_type is null or h.job_type = retry_all.job_type)
    order by h.id limit greatest(retry_all.most, 0)
  loop
    begin
      if piecework.retry(job) = 'pending' then
        started := started + 1;
      end if;
    exception when unique_violation then
      null;
    end;
  end loop;
  return started;
end $$;

-- Starts no more jobs of this type, on any runner, until it is resumed. What runs, runs on; what is enqueued waits. Returns false
-- when it was paused already.
create function piecework.pause(job_type text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  if coalesce(length(pause.job_type), 0) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'a job type has 1 to 200 characters';
  end if;
  insert into piecework.paused (job_type) values (pause.job_type) on conflict do nothing;
  return found;
end $$;

-- Goes on with a job type that was paused. Returns false when it was not.
create function piecework.resume(job_type text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  delete from piecework.paused p where p.job_type = resume.job_type;
  if not found then
    return false;
  end if;
  perform piecework.wake(array[resume.job_type]);
  return true;
end $$;

-- From now on each job type that is subscribed gets a job for each payload that is published under the topic. Returns false when
-- it was subscribed already.
create function piecework.subscribe(topic text, job_type text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  if coalesce(length(subscribe.topic), 0) not between 1 and 200 or coalesce(length(subscribe.job_type), 0) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'a topic and a job type have 1 to 200 characters each';
  end if;
  insert into piecework.subscription (topic, job_type) values (subscribe.topic, subscribe.job_type) on conflict do nothing;
  return found;
end $$;

-- Returns false when it was not subscribed.
create function piecework.unsubscribe(topic text, job_type text) returns boolean language plpgsql as $$
#variable_conflict use_column
begin
  delete from piecework.subscription s where s.topic = unsubscribe.topic and s.job_type = unsubscribe.job_type;
  return found;
end $$;

-- Enqueues one job for each job type that is subscribed to the topic, all in the caller's transaction, with the options of
-- `enqueue`. Returns how many jobs; 0 when nobody is subscribed. With a unique key, types that have such a job already are not
-- counted out: each has one.
create function piecework.publish(
  topic text, payload jsonb default '{}', due_at timestamptz default null, delay interval default null,
  priority int default 2, max_attempts int default 5, unique_key text default null, unique_for interval default null,
  ordering_key text default null
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
                              null, publish.unique_key, publish.unique_for, publish.ordering_key);
    jobs := jobs + 1;
  end loop;
  return jobs;
end $$;

-- Finds the jobs of a chain. Of version 1 no job has a root, so it is empty at first; a million rows are read in a fifth of a second,
-- for which finishes and claims wait.
create index job_root on piecework.job (root) where root is not null;

-- For ordering keys: each key's jobs in order, and the keys that have an unblocked one.
create index job_key on piecework.job (ordering_key, id) where ordering_key is not null;
create index job_key_open on piecework.job (ordering_key) where ordering_key is not null and not blocked;

-- The same view; what is new comes last.
create or replace view piecework.jobs as
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         null::timestamptz as finished_at, payload, null::jsonb as result, parent, root,
         null::text as failure, last_error, runner, null::bytea as plugin, null::bigint as run_us, null::bigint as cpu_us,
         null::bigint as fuel, null::bigint as peak_memory, attempts, output, progress,
         null::int as http_calls, null::bigint as http_bytes, null::bigint as http_us, checkpoint, blocked
  from piecework.job
  union all
  select id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         finished_at, payload, result, parent, root,
         failure, last_error, runner, plugin, run_us, cpu_us,
         fuel, peak_memory, attempts, output, progress, http_calls, http_bytes, http_us, checkpoint, false
  from piecework.job_history;

-- Who may do what. These three work with the rights of the schema's owner, so that a role that may execute one of them needs no
-- right to any table: it can enqueue, and nothing else. Nobody may execute anything without a grant.
alter function piecework.enqueue(text, jsonb, timestamptz, interval, int, int, bigint, text, interval, text)
  security definer set search_path = pg_catalog, pg_temp;
alter function piecework.enqueue_many(jsonb) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.publish(text, jsonb, timestamptz, interval, int, int, text, interval, text)
  security definer set search_path = pg_catalog, pg_temp;
revoke execute on all functions in schema piecework from public;
