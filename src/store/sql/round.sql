-- One round of a runner: writes what attempts came to and claims due jobs, in one statement that is committed by itself.
-- After it no lock and no transaction is open. Either half may be empty. Nothing of the two halves meets: what is written
-- runs, what is claimed is pending.
--
-- The finish:
--   $1 bigint[] id  $2 bigint[] claim  $3 text[] verdict: 'done', 'failed', or 'again' (pending after $4)
--   $4 float8[] delay in seconds  $5 boolean[] give the attempt back  $6 text[] result, JSON
--   $7 text[] failure class  $8 text[] error text  $9 text[] captured output  $10 bytea[] plugin digest
--   $11 bigint[] run time in us  $12 bigint[] computing time in us  $13 bigint[] fuel  $14 bigint[] peak memory in bytes
--   $15 int[] HTTP calls  $16 bigint[] bytes they sent and received  $17 bigint[] their time in us
--   $18 text[] the newest progress that is not written yet, JSON
-- The claim:
--   $19 text[] job type         } one pick each, in the order in which they are to be served
--   $20 smallint[] priority     }
--   $21 int[] most jobs of this job type, the same at each of its priorities
--   $22 timestamptz[], $23 bigint[] low-water mark: jobs at or before (due_at, id) were claimed before
--   $24 jsonb seconds until the deadline, by job type  $25 int most jobs in all  $26 bigint the runner, which must be alive
-- The claim of job types that have limits of the fleet or groups (see piecework.take):
--   $27 text what is wanted of each, JSON  $28 int most jobs in all  $29 text[] types whose running jobs count for a limit
--   $30 text[] types of $19 of which it is not known whether they have jobs with a group
--
-- Rows with `claimed` false: what was written. A pair (id, claim) that is missing was stale (its claim is not the row's any
-- more) and nothing of it was written. Rows with `claimed` true: the jobs to run, in no order.
--
-- Rows with `claimed` null, only where a claim was asked for. With a note: what `take` says about a type, as JSON, or that a type
-- of $30 has groups. Without: there are ordering keys or batches to settle (see settle.sql).
--
-- One statement, since each round trip wakes two processes: with a transaction around two statements a runner of 64 slots
-- spent half of its time waiting for those.
with f as (
  select *
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::float8[], $5::boolean[], $6::text[], $7::text[], $8::text[],
              $9::text[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
              $15::int[], $16::bigint[], $17::bigint[], $18::text[])
       as f (id, claim, verdict, delay, refund, result, failure, error, output, plugin, run_us, cpu_us, fuel, peak_memory,
             http_calls, http_bytes, http_us, progress)
  -- Nothing, of which the planner expects 1,000 rows. Of the arrays it expects 10, and then compares each row with each:
  -- 2 ms for 200 outcomes, 50 ms for 1,000. So it takes a hash join.
  union all
  select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
  from generate_subscripts('{}'::int[], 1)
),
-- Rows are found by primary key alone: `state = 'running'` in a WHERE would invite a scan of the running index (30 ms for
-- 50 rows under a pinned horizon), and the claim says it already.
gone as (
  delete from piecework.job j using f
  where j.id = any ($1::bigint[]) and j.id = f.id and j.claim = f.claim and f.verdict <> 'again'
  returning j.id, j.claim, j.job_type, j.priority, j.due_at, j.attempt, j.max_attempts, j.unique_key, j.ordering_key, j.enqueued_at,
            j.started_at, j.payload, j.parent, j.root, j.runner, j.attempts, j.checkpoint, j.trace_context, j.group_key, j.batch,
            coalesce(f.progress::jsonb || jsonb_build_object('at', now()), j.progress) as progress,
            f.verdict, f.result, f.failure, f.error, f.output, f.plugin, f.run_us, f.cpu_us, f.fuel, f.peak_memory,
            f.http_calls, f.http_bytes, f.http_us
),
kept as (
  insert into piecework.job_history (
    id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
    payload, result, parent, root, failure, last_error, runner, plugin, run_us, cpu_us, fuel, peak_memory,
    http_calls, http_bytes, http_us, attempts, output, progress, checkpoint, trace_context, claim, group_key, batch, finished_at)
  select id, job_type, verdict::piecework.job_state, priority, due_at, attempt, max_attempts, unique_key, ordering_key,
         enqueued_at, started_at, payload, result::jsonb, parent, root, failure, error, runner, plugin, run_us, cpu_us,
         fuel, peak_memory, http_calls, http_bytes, http_us, attempts, output, progress,
         case when verdict <> 'done' then checkpoint end, trace_context, claim, group_key, batch, now()
  from gone
  -- Three rows, read once. What is to be kept for no time is not even written.
  where verdict <> all (array(select r.state::text from piecework.retention r where r.keep = interval '0'))
),
-- In the same transaction as the end of the job, so that whoever sees the last note of a batch sees none of its jobs.
noted as (
  insert into piecework.key_todo (batch)
  select distinct batch from gone where batch is not null and batch <> id
),
again as (
  update piecework.job j
  set state = 'pending', attempt = j.attempt - f.refund::int,
      -- Never behind the low-water marks of the runners, whatever the row said before.
      due_at = greatest(j.due_at, now() + make_interval(secs => f.delay)),
      group_state = case when j.group_key is not null then case when f.delay > 0 or j.due_at > now() then 1 else 2 end end,
      claim = null, runner = null, started_at = null, deadline_at = null,
      last_error = coalesce(f.error, j.last_error), output = f.output,
      progress = coalesce(f.progress::jsonb || jsonb_build_object('at', now()), j.progress),
      -- The newest 20 are kept.
      attempts = case when jsonb_array_length(j.attempts) >= 20 then j.attempts - 0 else coalesce(j.attempts, '[]') end
        || jsonb_strip_nulls(jsonb_build_object(
             'attempt', j.attempt, 'failure', f.failure, 'error', f.error, 'runner', j.runner,
             'plugin', encode(f.plugin, 'hex'), 'started_at', j.started_at, 'run_us', f.run_us, 'cpu_us', f.cpu_us,
             'fuel', f.fuel, 'peak_memory', f.peak_memory, 'http_calls', f.http_calls, 'http_bytes', f.http_bytes,
             'http_us', f.http_us))
  from f
  where j.id = any ($1::bigint[]) and j.id = f.id and j.claim = f.claim and f.verdict = 'again'
  returning f.id, f.claim
),
-- Each pick reads the claim index in order from its mark on: under a pinned horizon a scan from the start wades through
-- all entries claimed since (36,000 jobs/s with marks, 1,200 without). The picks are pulled one row at a time, so the
-- LIMIT above them stops the scan and the row locks at $25 rows.
picked as materialized (
  select t.job_type, t.want, t.pick, p.id
  from unnest($19::text[], $20::smallint[], $21::int[], $22::timestamptz[], $23::bigint[])
       with ordinality as t (job_type, priority, want, mark_at, mark_id, pick)
  cross join lateral (
    select j.id
    from piecework.job j
    where j.state = 'pending' and not j.blocked
      and j.job_type = t.job_type and j.priority = t.priority
      and j.due_at <= now() and (j.due_at, j.id) > (t.mark_at, t.mark_id)
    order by j.due_at, j.id
    limit t.want
    for update skip locked) p
  -- A handful of rows, read once.
  where t.job_type <> all (array(select q.job_type from piecework.paused q))
  -- Nothing for a runner that was declared dead: what it claimed would be taken back at once, attempt by attempt.
  limit (select $25::int * count(*) from piecework.runner r where r.id = $26::bigint and r.state = 'live' and r.lease_until > now())
),
-- A job type has slots of its own, which its four priorities share.
chosen as (
  select r.id
  from (select id, want, row_number() over (partition by job_type order by pick) as place from picked) r
  where r.place <= r.want
),
taken as materialized (
  select t.job_type, t.id, t.note, t.at
  from piecework.take($27::text::jsonb, (
    select ($28::int * count(*))::int from piecework.runner r where r.id = $26::bigint and r.state = 'live' and r.lease_until > now())) t
),
claimed as (
  update piecework.job j
  set state = 'running', attempt = j.attempt + 1, claim = (select nextval('piecework.claim_seq')), runner = $26::bigint,
      -- Not now(), which is before a wait for others who claim under the same limit.
      started_at = coalesce((select min(at) from taken), clock_timestamp()), deadline_at = now() + make_interval(secs => ($24::jsonb ->> j.job_type)::float8),
      counted = case when j.job_type = any ($29::text[]) then true end
  -- Through the array, not by a join: a join lets the planner take a hash join over the whole table (6 to 29 claims a second
  -- at 500,000 rows instead of 730 to 900).
  where j.id = any (array(select id from chosen union all select id from taken where id is not null))
  returning j.id, j.claim, j.job_type, j.priority, j.due_at, j.attempt, j.max_attempts, j.payload, j.ordering_key,
            j.enqueued_at, j.parent, coalesce(j.root, j.id) as root, j.checkpoint, j.batch, j.group_key
)
select false as claimed, id, claim, null::text as job_type, null::smallint as priority, null::timestamptz as due_at,
       null::int as attempt, null::int as max_attempts, null::text as payload, null::text as ordering_key,
       null::timestamptz as enqueued_at, null::bigint as parent, null::bigint as root,
       null::text as checkpoint, null::bigint as batch, null::text as group_key, null::text as note
from gone
union all
select false, id, claim, null, null, null, null, null, null, null, null, null, null, null, null, null, null from again
union all
select true, id, claim, job_type, priority, due_at, attempt, max_attempts, piecework.payload_text(payload), ordering_key, enqueued_at, parent,
       root, checkpoint::text, batch, group_key, null
from claimed
union all
select null, null, null, job_type, null, null, null, null, null, null, null, null, null, null, null, null, note::text
from taken where note is not null
union all
select null, null, null, u.job_type, null, null, null, null, null, null, null, null, null, null, null, null, '{"groups": true}'
from unnest($30::text[]) as u (job_type)
where piecework.has_groups(u.job_type)
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
where $25::int + $28::int > 0 and exists (select from piecework.key_todo)
