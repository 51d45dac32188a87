-- Writes what attempts came to, many at once. Returns what was written: a pair that is missing was stale (its claim is not
-- the row's any more) and nothing of it was written.
--   $1 bigint[] id  $2 bigint[] claim  $3 text[] verdict: 'done', 'failed', or 'again' (pending after $4)
--   $4 float8[] delay in seconds  $5 boolean[] give the attempt back  $6 text[] result, JSON
--   $7 text[] failure class  $8 text[] error text  $9 text[] captured output  $10 bytea[] plugin digest
--   $11 bigint[] run time in us  $12 bigint[] computing time in us  $13 bigint[] fuel  $14 bigint[] peak memory in bytes
-- Rows are found by primary key alone: `state = 'running'` in a WHERE would invite a scan of the running index (30 ms for
-- 50 rows under a pinned horizon), and the claim says it already.
with f as (
  select *
  from unnest($1::bigint[], $2::bigint[], $3::text[], $4::float8[], $5::boolean[], $6::text[], $7::text[], $8::text[],
              $9::text[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[])
       as f (id, claim, verdict, delay, refund, result, failure, error, output, plugin, run_us, cpu_us, fuel, peak_memory)
),
gone as (
  delete from piecework.job j using f
  where j.id = any ($1::bigint[]) and j.id = f.id and j.claim = f.claim and f.verdict <> 'again'
  returning j.id, j.claim, j.job_type, j.priority, j.due_at, j.attempt, j.max_attempts, j.unique_key, j.ordering_key, j.enqueued_at,
            j.started_at, j.payload, j.parent, j.root, j.runner, j.attempts, j.progress, j.trace_context,
            f.verdict, f.result, f.failure, f.error, f.output, f.plugin, f.run_us, f.cpu_us, f.fuel, f.peak_memory
),
kept as (
  insert into piecework.job_history (
    id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
    payload, result, parent, root, failure, last_error, runner, plugin, run_us, cpu_us, fuel, peak_memory,
    attempts, output, progress, trace_context, claim)
  select id, job_type, verdict::piecework.job_state, priority, due_at, attempt, max_attempts, unique_key, ordering_key,
         enqueued_at, started_at, payload, result::jsonb, parent, root, failure, error, runner, plugin, run_us, cpu_us,
         fuel, peak_memory, attempts, output, progress, trace_context, claim
  from gone
),
again as (
  update piecework.job j
  set state = 'pending', attempt = j.attempt - f.refund::int,
      -- Never behind the low-water marks of the runners, whatever the row said before.
      due_at = greatest(j.due_at, now() + make_interval(secs => f.delay)),
      claim = null, runner = null, started_at = null, deadline_at = null,
      last_error = coalesce(f.error, j.last_error), output = f.output,
      -- The newest 20 are kept.
      attempts = case when jsonb_array_length(j.attempts) >= 20 then j.attempts - 0 else coalesce(j.attempts, '[]') end
        || jsonb_strip_nulls(jsonb_build_object(
             'attempt', j.attempt, 'failure', f.failure, 'error', f.error, 'runner', j.runner,
             'plugin', encode(f.plugin, 'hex'), 'started_at', j.started_at, 'run_us', f.run_us, 'cpu_us', f.cpu_us,
             'fuel', f.fuel, 'peak_memory', f.peak_memory))
  from f
  where j.id = any ($1::bigint[]) and j.id = f.id and j.claim = f.claim and f.verdict = 'again'
  returning f.id, f.claim
)
select id, claim from gone
union all
select id, claim from again
