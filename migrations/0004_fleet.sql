-- Plugins of the fleet: components in the database, which of them serves a job type, canaries and what becomes of them.
-- Only new tables and functions: no table of before is locked, and runners of version 3 go on beside it with the plugins of their folders.

-- A component, under the digest of its bytes.
create table piecework.component (
  digest        bytea       primary key,
  bytes         bytea       not null,
  size          int         not null generated always as (octet_length(bytes)) stored,
  -- The text of a minisign signature.
  signature     text        check (octet_length(signature) between 1 and 8192),
  pushed_at     timestamptz not null default clock_timestamp(),
  pushed_by     text        not null default session_user,
  constraint component_digest check (digest = sha256(bytes)),
  constraint component_size check (octet_length(bytes) between 1 and 268435456)
);
-- Not compressed: then a piece of it is read without the rest.
alter table piecework.component alter column bytes set storage external;

-- Pieces of a component on its way here. What a crash of the server loses is sent again.
create unlogged table piecework.component_part (
  upload        bigint      not null,
  place         int         not null check (place between 0 and 100000),
  bytes         bytea       not null check (octet_length(bytes) between 1 and 4194304),
  at            timestamptz not null default clock_timestamp(),
  primary key (upload, place)
);
alter table piecework.component_part alter column bytes set storage external;

create sequence piecework.release_seq as bigint;

-- What the fleet serves, one row a job type. A row stays when nothing is served any more: it is what changes lock.
create table piecework.release (
  job_type      text        primary key check (length(job_type) between 1 and 200),
  stable        bytea       references piecework.component,
  stable_since  timestamptz,
  canary        bytea       references piecework.component,
  -- Of the type's jobs.
  canary_percent numeric(4, 2) check (canary_percent > 0),
  canary_since  timestamptz,
  auto_rollback boolean     not null default true,
  -- The stable versions before, the newest first: what a rollback goes back to.
  previous      bytea[]     not null default '{}',
  pinned_at     timestamptz,
  pinned_by     text,
  -- Grows with every change, over all types. Counts of a canary carry it.
  revision      bigint      not null default nextval('piecework.release_seq'),
  constraint release_stable check ((stable is null) = (stable_since is null)),
  constraint release_canary check ((canary is null) = (canary_percent is null) and (canary is null) = (canary_since is null)),
  constraint release_apart check (canary is null or stable is not null and canary <> stable),
  constraint release_pinned check ((pinned_at is null) = (pinned_by is null) and (pinned_at is null or stable is not null and canary is null))
);

-- Every change. Rows are small and stay.
create table piecework.release_history (
  id            bigint generated always as identity primary key,
  at            timestamptz not null default clock_timestamp(),
  who           text        not null default session_user,
  job_type      text        not null,
  action        text        not null check (action in ('push', 'canary', 'promote', 'rollback', 'auto_rollback', 'pin', 'unpin', 'withdraw')),
  -- What served before, or the canary that ended; what serves from then on, or the canary that began.
  from_digest   bytea,
  to_digest     bytea,
  percent       numeric(4, 2),
  reason        text,
  -- Attempts of the canary and of the stable version, when a canary ended.
  numbers       jsonb,
  revision      bigint      not null
);
create index release_history_type on piecework.release_history (job_type, id);

-- What each runner says of its plugins: an array of objects with job_type, digest, source (fleet, folder), state and reason.
create table piecework.runner_plugins (
  runner        bigint      primary key,
  at            timestamptz not null default clock_timestamp(),
  -- Whether it takes plugins from the fleet at all.
  fleet         boolean     not null,
  plugins       jsonb       not null check (jsonb_typeof(plugins) = 'array')
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- First attempts of jobs, of both versions, since a canary began, as each process counts them: whole numbers and not increments, so that
-- one that is written twice counts once. `source` is a number that the process has drawn.
create table piecework.canary_count (
  job_type      text        not null,
  digest        bytea       not null,
  revision      bigint      not null,
  source        bigint      not null,
  done          bigint      not null check (done >= 0),
  failed        bigint      not null check (failed >= 0),
  primary key (job_type, revision, digest, source)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Stores a component, and returns its digest. One that is there already stays, and gets the signature if one is given.
create function piecework.component_put(bytes bytea, signature text default null) returns bytea language plpgsql as $$
#variable_conflict use_column
declare
  digest bytea;
begin
  if coalesce(octet_length(component_put.bytes), 0) not between 1 and 268435456 then
    raise exception using errcode = '22023',
      message = format('the component has %s bytes, the limit is 268435456', coalesce(octet_length(component_put.bytes), 0));
  end if;
  if octet_length(component_put.signature) not between 1 and 8192 then
    raise exception using errcode = '22023',
      message = format('the signature has %s bytes, the limit is 8192', octet_length(component_put.signature));
  end if;
  digest := sha256(component_put.bytes);
  insert into piecework.component as c (digest, bytes, signature) values (digest, component_put.bytes, component_put.signature)
  -- Its age counts from now, so that it is not pruned before it is released.
  on conflict (digest) do update set signature = coalesce(excluded.signature, c.signature), pushed_at = clock_timestamp(), pushed_by = session_user;
  return digest;
end $$;

-- Keeps a piece of a component that is too large for one statement on a slow link. Places count from 0.
create function piecework.component_part(upload bigint, place int, bytes bytea) returns void language sql as $$
  insert into piecework.component_part (upload, place, bytes) values (component_part.upload, component_part.place, component_part.bytes)
  on conflict on constraint component_part_pkey do update set bytes = excluded.bytes, at = clock_timestamp()
$$;

-- Puts the pieces of an upload together and stores them as component_put does. Raises 22023 when that is not what was sent. It takes six to
-- seven times the component's size of the server's memory for a moment (0.4 GB and 1 s for 50 MiB, 1.7 GB and 5 to 11 s for 255 MiB).
create function piecework.component_join(upload bigint, digest bytea, signature text default null) returns bytea language plpgsql as $$
#variable_conflict use_column
declare
  size bigint;
  stored bytea;
begin
  -- Before they are put together: nothing of PostgreSQL can be larger than 1 GiB.
  select sum(octet_length(p.bytes)) into size from piecework.component_part p where p.upload = component_join.upload;
  if size > 268435456 then
    raise exception using errcode = '22023', message = format('the component has %s bytes, the limit is 268435456', size);
  end if;
  select piecework.component_put(string_agg(p.bytes, ''::bytea order by p.place), component_join.signature) into stored
  from piecework.component_part p where p.upload = component_join.upload;
  if stored is distinct from component_join.digest then
    raise exception using errcode = '22023', message = 'the component that arrived is not the one that was sent', hint = 'Push it again.';
  end if;
  delete from piecework.component_part p where p.upload = component_join.upload;
  return stored;
end $$;

-- How a version is named in messages.
create function piecework.short(digest bytea) returns text language sql immutable as $$
  select left(encode(short.digest, 'hex'), 12)
$$;

-- Where the true failure rate lies, by the Wilson score interval; without any attempt anywhere from 0 to 1.
create function piecework.failure_interval(failed bigint, attempts bigint, z float8, out low float8, out high float8)
language sql immutable as $$
  select greatest(0, middle - width), least(1, middle + width)
  from (select failure_interval.failed::float8 as f, failure_interval.attempts::float8 as n, failure_interval.z ^ 2 as z2) i
  cross join lateral (
    select (f + z2 / 2) / (n + z2) as middle,
           failure_interval.z / (n + z2) * sqrt(coalesce(f * (n - f) / nullif(n, 0), 0) + z2 / 4) as width) w
$$;

-- Holds a canary against the stable version: see judge_canaries.
create function piecework.judge(job_type text, canary bytea, stable bytea, revision bigint, out worse boolean, out reason text, out numbers jsonb)
language plpgsql stable as $$
#variable_conflict use_column
declare
  z constant float8 := 3.5;
  c record;
  s record;
begin
  select t.failed, t.attempts, i.low into c
  from (select coalesce(sum(n.failed), 0)::bigint as failed, coalesce(sum(n.done + n.failed), 0)::bigint as attempts
        from piecework.canary_count n where n.job_type = judge.job_type and n.revision = judge.revision and n.digest = judge.canary) t
  cross join lateral piecework.failure_interval(t.failed, t.attempts, z) i;
  select t.failed, t.attempts, i.high into s
  from (select coalesce(sum(n.failed), 0)::bigint as failed, coalesce(sum(n.done + n.failed), 0)::bigint as attempts
        from piecework.canary_count n where n.job_type = judge.job_type and n.revision = judge.revision and n.digest = judge.stable) t
  cross join lateral piecework.failure_interval(t.failed, t.attempts, z) i;
  worse := c.failed >= 5 and c.low > s.high;
  reason := format('%s of %s attempts of the canary failed (surely more than %s %%), %s of %s of the stable version (surely less than %s %%)',
                   c.failed, c.attempts, round(100 * c.low::numeric, 2), s.failed, s.attempts, round(100 * s.high::numeric, 2));
  numbers := jsonb_build_object('canary', jsonb_build_object('done', c.attempts - c.failed, 'failed', c.failed),
                                'stable', jsonb_build_object('done', s.attempts - s.failed, 'failed', s.failed));
end $$;

-- The row of a type, locked: whoever changes it comes after whoever has it.
create function piecework.lock_release(job_type text) returns piecework.release language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release;
begin
  select * into r from piecework.release t where t.job_type = lock_release.job_type for update;
  if r.stable is null then
    raise exception using errcode = '22023', message = format('the fleet serves no %s', coalesce(lock_release.job_type, 'null')),
      hint = 'Push a component for it, or name a version that it had: `piecework plugins rollback TYPE --to VERSION`.';
  end if;
  return r;
end $$;

create function piecework.refuse_pinned(r piecework.release) returns void language plpgsql as $$
begin
  if r.pinned_at is not null then
    raise exception using errcode = '22023',
      message = format('%s is pinned to %s by %s since %s UTC', r.job_type, piecework.short(r.stable), r.pinned_by,
                       to_char(r.pinned_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS')),
      hint = format('`piecework plugins unpin %s` first.', r.job_type);
  end if;
end $$;

-- The digest, when such a component is here; it cannot be pruned before the transaction ends.
create function piecework.hold_component(digest bytea) returns bytea language plpgsql as $$
#variable_conflict use_column
begin
  perform c.digest from piecework.component c where c.digest = hold_component.digest for key share;
  if not found then
    raise exception using errcode = '22023',
      message = format('the database has no component %s', coalesce(piecework.short(hold_component.digest), 'null')),
      hint = '`piecework plugins push FILE` stores one.';
  end if;
  return hold_component.digest;
end $$;

-- Writes a changed row, notes the change, and tells the runners. The row is locked by the caller, who passes it as it shall be.
create function piecework.put_release(r piecework.release, action text, from_digest bytea, to_digest bytea, reason text, numbers jsonb)
returns void language plpgsql as $$
#variable_conflict use_column
declare
  next_revision bigint := nextval('piecework.release_seq');
begin
  update piecework.release t
  set stable = r.stable, stable_since = r.stable_since, canary = r.canary, canary_percent = r.canary_percent, canary_since = r.canary_since,
      auto_rollback = r.auto_rollback, previous = r.previous, pinned_at = r.pinned_at, pinned_by = r.pinned_by, revision = next_revision
  where t.job_type = r.job_type;
  insert into piecework.release_history (job_type, action, from_digest, to_digest, percent, reason, numbers, revision)
  values (r.job_type, put_release.action, put_release.from_digest, put_release.to_digest,
          case when put_release.action = 'canary' then r.canary_percent end, put_release.reason, put_release.numbers, next_revision);
  -- Those of a canary that is over. What is written late carries its revision, and counts for nothing.
  delete from piecework.canary_count n where n.job_type = r.job_type;
  perform pg_notify('piecework_plugins', r.job_type);
end $$;

-- The row with another stable version, which serves everything. One that served before is gone back to: what came after it is forgotten.
create function piecework.with_stable(r piecework.release, digest bytea) returns piecework.release language plpgsql as $$
declare
  place int := array_position(r.previous, with_stable.digest);
begin
  r.previous := case
    when place is not null then r.previous[place + 1:]
    when r.stable is null then r.previous
    else (array_prepend(r.stable, r.previous))[1:20] end;
  r.stable := piecework.hold_component(with_stable.digest);
  r.stable_since := clock_timestamp();
  r.canary := null; r.canary_percent := null; r.canary_since := null;
  return r;
end $$;

-- What the functions below say: whether they changed anything, what in words, and how the type stands now.
create function piecework.release_answer(job_type text, changed boolean, message text) returns jsonb language sql stable as $$
  select jsonb_build_object(
    'changed', release_answer.changed, 'message', release_answer.message, 'job_type', t.job_type, 'revision', t.revision,
    'stable', encode(t.stable, 'hex'), 'canary', encode(t.canary, 'hex'), 'percent', t.canary_percent,
    'pinned', t.pinned_at is not null)
  from piecework.release t where t.job_type = release_answer.job_type
$$;

-- The attempts of both versions of a canary that is about to end; null without one.
create function piecework.canary_numbers(r piecework.release) returns jsonb language sql stable as $$
  select j.numbers from piecework.judge(r.job_type, r.canary, r.stable, r.revision) j where r.canary is not null
$$;

-- From now on this component serves the type on all runners: all of it, whatever served before; or with `canary` that percentage of its jobs,
-- by job id, beside the stable version. Other canaries of the type end. Does nothing when it is so already.
create function piecework.plugin_push(job_type text, digest bytea, canary numeric default null, auto_rollback boolean default true)
returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release;
  was bytea;
  numbers jsonb;
  thrown timestamptz;
  message text;
begin
  if coalesce(length(plugin_push.job_type), 0) not between 1 and 200 then
    raise exception using errcode = '22023', message = 'a job type has 1 to 200 characters';
  end if;
  if round(plugin_push.canary, 2) <= 0 or round(plugin_push.canary, 2) >= 100 then
    raise exception using errcode = '22023', message = format('a canary cannot have %s %% of the jobs', plugin_push.canary),
      hint = 'The share lies between 0.01 and 99.99 percent; push without a canary to serve all jobs.';
  end if;
  perform piecework.hold_component(plugin_push.digest);
  insert into piecework.release (job_type) values (plugin_push.job_type) on conflict (job_type) do nothing;
  select * into r from piecework.release t where t.job_type = plugin_push.job_type for update;
  if r.stable = plugin_push.digest then
    return piecework.release_answer(r.job_type, false, format('%s of %s is the stable version already', piecework.short(r.stable), r.job_type)
      || case when r.canary is not null then format('; the canary %s goes on', piecework.short(r.canary)) else '' end);
  end if;
  if r.canary = plugin_push.digest and r.canary_percent = round(plugin_push.canary, 2)
     and r.auto_rollback = coalesce(plugin_push.auto_rollback, true) then
    return piecework.release_answer(r.job_type, false,
      format('%s of %s is a canary with %s %% already', piecework.short(r.canary), r.job_type, r.canary_percent));
  end if;
  perform piecework.refuse_pinned(r);
  if plugin_push.canary is not null and r.stable is null then
    raise exception using errcode = '22023',
      message = format('the fleet serves no %s that a canary could be held against', r.job_type),
      hint = 'Push the stable version first, without a canary.';
  end if;
  numbers := piecework.canary_numbers(r);
  select max(h.at) into thrown from piecework.release_history h
  where h.job_type = plugin_push.job_type and h.action = 'auto_rollback' and h.from_digest = plugin_push.digest;
  if plugin_push.canary is null then
    was := r.stable;
    -- Pushed and not gone back to: what serves now is the next to go back to, also if this one served before it.
    r.previous := array_remove(r.previous, plugin_push.digest);
    r := piecework.with_stable(r, plugin_push.digest);
    message := format('%s serves %s', piecework.short(r.stable), r.job_type);
    perform piecework.put_release(r, 'push', was, r.stable, null, numbers);
  else
    was := coalesce(r.canary, r.stable);
    message := format('%s serves %s %% of %s as a canary beside %s', piecework.short(plugin_push.digest), round(plugin_push.canary, 2),
                      r.job_type, piecework.short(r.stable))
      || case when r.canary <> plugin_push.digest then format('; the canary %s ended', piecework.short(r.canary)) else '' end;
    r.canary := plugin_push.digest; r.canary_percent := round(plugin_push.canary, 2); r.canary_since := clock_timestamp();
    r.auto_rollback := coalesce(plugin_push.auto_rollback, true);
    perform piecework.put_release(r, 'canary', was, r.canary, null, numbers);
  end if;
  return piecework.release_answer(r.job_type, true, message
    || coalesce('; it was rolled back by itself at ' || to_char(thrown at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', ''));
end $$;

-- The canary serves all of its type from now on. With a digest only if that is the canary.
create function piecework.plugin_promote(job_type text, digest bytea default null) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release := piecework.lock_release(plugin_promote.job_type);
  was bytea := r.stable;
  numbers jsonb;
  last record;
begin
  if r.canary is null then
    if r.stable = plugin_promote.digest then
      return piecework.release_answer(r.job_type, false, format('%s of %s is the stable version already', piecework.short(r.stable), r.job_type));
    end if;
    select h.* into last from piecework.release_history h where h.job_type = r.job_type order by h.id desc limit 1;
    raise exception using errcode = '22023', message = format('no canary of %s runs', r.job_type)
      || case when last.action = 'auto_rollback'
              then format('; %s was rolled back by itself at %s UTC: %s', piecework.short(last.from_digest),
                          to_char(last.at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS'), last.reason) else '' end;
  end if;
  if r.canary <> plugin_promote.digest then
    raise exception using errcode = '22023',
      message = format('the canary of %s is %s and not %s', r.job_type, piecework.short(r.canary), piecework.short(plugin_promote.digest));
  end if;
  numbers := piecework.canary_numbers(r);
  r.previous := array_remove(r.previous, r.canary);
  r := piecework.with_stable(r, r.canary);
  perform piecework.put_release(r, 'promote', was, r.stable, null, numbers);
  return piecework.release_answer(r.job_type, true, format('%s serves all of %s', piecework.short(r.stable), r.job_type));
end $$;

-- Ends the canary, if one runs; otherwise goes back to the stable version before, and called again to that before it. Versions that were
-- rolled back by themselves, and have not been made stable by hand since, are left out. With `to_digest` makes that version of the type
-- the stable one, whichever it is.
create function piecework.plugin_rollback(job_type text, to_digest bytea default null) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release;
  was bytea;
  target bytea := plugin_rollback.to_digest;
  numbers jsonb;
begin
  select * into r from piecework.release t where t.job_type = plugin_rollback.job_type for update;
  if r.job_type is null or r.stable is null and target is null then
    r := piecework.lock_release(plugin_rollback.job_type);
  end if;
  perform piecework.refuse_pinned(r);
  numbers := piecework.canary_numbers(r);
  if target = r.canary then
    raise exception using errcode = '22023', message = format('%s is the canary of %s', piecework.short(target), r.job_type),
      hint = format('`piecework plugins promote %s` makes it the stable version.', r.job_type);
  end if;
  if r.canary is not null and (target is null or target = r.stable) then
    was := r.canary;
    r.canary := null; r.canary_percent := null; r.canary_since := null;
    perform piecework.put_release(r, 'rollback', was, r.stable, null, numbers);
    return piecework.release_answer(r.job_type, true,
      format('the canary %s ended; %s serves all of %s', piecework.short(was), piecework.short(r.stable), r.job_type));
  end if;
  if target = r.stable then
    return piecework.release_answer(r.job_type, false, format('%s of %s is the stable version already', piecework.short(r.stable), r.job_type));
  end if;
  if target is null then
    select p.digest into target
    from unnest(r.previous) with ordinality as p (digest, place)
    where p.digest <> r.stable
      and exists (select from piecework.component c where c.digest = p.digest)
      and not exists (
        select from piecework.release_history h
        where h.job_type = r.job_type and h.action = 'auto_rollback' and h.from_digest = p.digest
          and not exists (
            select from piecework.release_history l
            where l.job_type = r.job_type and l.action in ('push', 'promote', 'rollback', 'pin') and l.to_digest = p.digest and l.id > h.id))
    order by p.place limit 1;
    if not found then
      raise exception using errcode = '22023', message = format('there is no version of %s before %s', r.job_type, piecework.short(r.stable)),
        hint = format('`piecework plugins history %s` shows all; name one with --to, or withdraw the type.', r.job_type);
    end if;
  elsif not exists (
    select from piecework.release_history h where h.job_type = r.job_type and target in (h.from_digest, h.to_digest)) then
    raise exception using errcode = '22023', message = format('%s has never served %s', piecework.short(target), r.job_type),
      hint = 'Push it.';
  end if;
  was := r.stable;
  r := piecework.with_stable(r, target);
  perform piecework.put_release(r, 'rollback', was, r.stable, null, numbers);
  return piecework.release_answer(r.job_type, true, format('%s serves %s again', piecework.short(r.stable), r.job_type)
    || coalesce(', in place of ' || piecework.short(was), ''));
end $$;

-- Keeps the stable version, or another one that the type had, until it is unpinned: pushes, rollbacks and withdrawals are refused. A canary ends.
create function piecework.plugin_pin(job_type text, digest bytea default null) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release := piecework.lock_release(plugin_pin.job_type);
  was bytea := coalesce(r.canary, r.stable);
  numbers jsonb;
begin
  if coalesce(plugin_pin.digest, r.stable) = r.stable and r.pinned_at is not null then
    return piecework.release_answer(r.job_type, false, format('%s is pinned to %s already', r.job_type, piecework.short(r.stable)));
  end if;
  perform piecework.refuse_pinned(r);
  numbers := piecework.canary_numbers(r);
  if plugin_pin.digest <> r.stable then
    if not exists (
      select from piecework.release_history h where h.job_type = r.job_type and plugin_pin.digest in (h.from_digest, h.to_digest)) then
      raise exception using errcode = '22023', message = format('%s has never served %s', piecework.short(plugin_pin.digest), r.job_type),
        hint = 'Push it, then pin it.';
    end if;
    was := r.stable;
    r := piecework.with_stable(r, plugin_pin.digest);
  end if;
  r.canary := null; r.canary_percent := null; r.canary_since := null;
  r.pinned_at := clock_timestamp(); r.pinned_by := session_user;
  perform piecework.put_release(r, 'pin', was, r.stable, null, numbers);
  return piecework.release_answer(r.job_type, true, format('%s is pinned to %s', r.job_type, piecework.short(r.stable)));
end $$;

create function piecework.plugin_unpin(job_type text) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release := piecework.lock_release(plugin_unpin.job_type);
begin
  if r.pinned_at is null then
    return piecework.release_answer(r.job_type, false, format('%s was not pinned', r.job_type));
  end if;
  r.pinned_at := null; r.pinned_by := null;
  perform piecework.put_release(r, 'unpin', r.stable, r.stable, null, null);
  return piecework.release_answer(r.job_type, true, format('%s is no longer pinned; %s serves it', r.job_type, piecework.short(r.stable)));
end $$;

-- The fleet serves the type no more. Runners that take plugins from a folder too serve what they find there.
create function piecework.plugin_withdraw(job_type text) returns jsonb language plpgsql as $$
#variable_conflict use_column
declare
  r piecework.release := piecework.lock_release(plugin_withdraw.job_type);
  was bytea := r.stable;
  numbers jsonb;
begin
  perform piecework.refuse_pinned(r);
  numbers := piecework.canary_numbers(r);
  r.previous := (array_prepend(r.stable, r.previous))[1:20];
  r.stable := null; r.stable_since := null; r.canary := null; r.canary_percent := null; r.canary_since := null;
  perform piecework.put_release(r, 'withdraw', was, null, null, numbers);
  return piecework.release_answer(r.job_type, true, format('the fleet serves %s no more', r.job_type));
end $$;

-- Ends canaries that are clearly worse than the stable version beside them, and returns which. Runners call it every second or so while
-- there is a canary; twice at once does no harm. The rule is that of `judge`: the canary has 5 failures at least, and the lower end of the
-- interval in which its failure rate lies (Wilson, z = 3.5) is above the upper end of that of the stable version. While the stable
-- version has no attempt, its interval is 0 to 1, and nothing happens.
-- Simulated, a look after each attempt, 10,000 runs of 100,000 attempts: of canaries as good as the stable version, failing in 1, 10 or
-- 50 of 100 attempts, at most 0.56 % were rolled back with 1 % of the jobs, 0.06 % with 10 %, 0.02 % with 50 %. (With z = 3.29: 1.01 %, 0.12 %
-- and 0.01 %.) With 10 % of the jobs a canary that always fails beside 1 % has 5 attempts, one with 20 % has 33, one with 3 % has 740 (medians).
-- Only first attempts of jobs are independent enough: with five attempts for each bad job up to 35 % of equal canaries were rolled back.
create function piecework.judge_canaries() returns table (job_type text, canary bytea, stable bytea, reason text, numbers jsonb) language plpgsql as $$
#variable_conflict use_column
declare
  look record;
  verdict record;
  r piecework.release;
begin
  for look in
    select t.job_type, t.revision from piecework.release t
    cross join lateral piecework.judge(t.job_type, t.canary, t.stable, t.revision) j
    where t.canary is not null and t.auto_rollback and j.worse
    order by t.job_type
  loop
    -- Somebody may promote it at this moment, or another runner roll it back: then it is not ours.
    select * into r from piecework.release t
    where t.job_type = look.job_type and t.revision = look.revision and t.canary is not null for update skip locked;
    continue when not found;
    select j.* into verdict from piecework.judge(r.job_type, r.canary, r.stable, r.revision) j;
    continue when not verdict.worse;
    job_type := r.job_type; canary := r.canary; stable := r.stable; reason := verdict.reason; numbers := verdict.numbers;
    r.canary := null; r.canary_percent := null; r.canary_since := null;
    perform piecework.put_release(r, 'auto_rollback', judge_canaries.canary, r.stable, verdict.reason, verdict.numbers);
    return next;
  end loop;
end $$;

-- Writes how many attempts of both versions of a canary a process has counted since it began: see canary_count. What is about a canary that
-- is over is left out. Arrays of one length.
create function piecework.count_canaries(source bigint, job_types text[], digests bytea[], revisions bigint[], done bigint[], failed bigint[])
returns void language sql as $$
  insert into piecework.canary_count as n (job_type, digest, revision, source, done, failed)
  select c.job_type, c.digest, c.revision, count_canaries.source, c.done, c.failed
  from unnest(job_types, digests, revisions, done, failed) as c (job_type, digest, revision, done, failed)
  join piecework.release t on t.job_type = c.job_type and t.revision = c.revision and t.canary is not null and c.digest in (t.stable, t.canary)
  order by c.job_type, c.digest
  -- An older statement may come later.
  on conflict (job_type, revision, digest, source) do update set done = greatest(n.done, excluded.done), failed = greatest(n.failed, excluded.failed)
$$;

-- Forgets components that nobody can want any more: those that neither serve nor can be gone back to, were not pushed within 30 days, and
-- are not among the last 20 versions of any type nor in a change of the last 30 days; uploads that were given up; reports of runners
-- that are forgotten. Returns how many components that were.
create function piecework.prune_components() returns int language plpgsql as $$
declare
  gone int;
begin
  delete from piecework.component_part where at < now() - interval '1 hour';
  delete from piecework.runner_plugins p where not exists (select from piecework.runner r where r.id = p.runner);
  delete from piecework.canary_count n
  where not exists (select from piecework.release t where t.job_type = n.job_type and t.revision = n.revision and t.canary is not null);
  delete from piecework.component c
  where c.digest = any (array(
    select o.digest from piecework.component o
    where o.pushed_at < now() - interval '30 days'
      and not exists (select from piecework.release t where o.digest in (t.stable, t.canary) or o.digest = any (t.previous))
      and not exists (select from piecework.release_history h where h.at > now() - interval '30 days' and o.digest in (h.from_digest, h.to_digest))
      and o.digest <> all (array(
        select v.to_digest
        from (select h.to_digest, row_number() over (partition by h.job_type order by max(h.id) desc) as place
              from piecework.release_history h where h.to_digest is not null group by h.job_type, h.to_digest) v
        where v.place <= 20))
    -- Somebody is about to release it.
    for update skip locked));
  get diagnostics gone = row_count;
  return gone;
end $$;

-- Components are code: who may call these needs no right to the tables, and cannot do more than they say.
alter function piecework.component_put(bytea, text) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.component_part(bigint, int, bytea) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.component_join(bigint, bytea, text) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_push(text, bytea, numeric, boolean) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_promote(text, bytea) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_rollback(text, bytea) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_pin(text, bytea) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_unpin(text) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.plugin_withdraw(text) security definer set search_path = pg_catalog, pg_temp;
alter function piecework.judge_canaries() security definer set search_path = pg_catalog, pg_temp;
alter function piecework.prune_components() security definer set search_path = pg_catalog, pg_temp;
revoke execute on function
  piecework.component_put, piecework.component_part, piecework.component_join, piecework.short, piecework.failure_interval, piecework.judge,
  piecework.lock_release, piecework.refuse_pinned, piecework.hold_component, piecework.put_release, piecework.with_stable,
  piecework.release_answer, piecework.canary_numbers, piecework.plugin_push, piecework.plugin_promote, piecework.plugin_rollback,
  piecework.plugin_pin, piecework.plugin_unpin, piecework.plugin_withdraw, piecework.judge_canaries, piecework.count_canaries,
  piecework.prune_components
from public;
