-- Takes jobs back from runners that are dead or gone, and jobs past their deadline: pending again, or failed when no attempt
-- is left, so that a job that kills its host is given up like any other. $1 int: most jobs at once.
-- Returns each job and whether it failed.
with lost as materialized (
  select j.id, j.attempt >= j.max_attempts as spent,
         case when r.state in ('live', 'stopping') then 'the attempt outlived its deadline'
              else format('the runner that ran it is gone (%s)', coalesce(r.name, 'runner ' || j.runner)) end as error
  from piecework.job j
  left join piecework.runner r on r.id = j.runner
  where j.state = 'running' and (r.id is null or r.state in ('dead', 'stopped') or j.deadline_at < now())
  limit $1::int
  for update of j skip locked
),
gone as (
  delete from piecework.job j using lost l
  where j.id = any (array(select id from lost where spent)) and j.id = l.id
  returning j.*, l.error
),
kept as (
  insert into piecework.job_history (
    id, job_type, state, priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
    payload, parent, root, failure, last_error, runner, attempts, output, progress, checkpoint, trace_context,
    group_key, batch)
  select id, job_type, 'failed', priority, due_at, attempt, max_attempts, unique_key, ordering_key, enqueued_at, started_at,
         payload, parent, root, 'host_lost', error || '; no attempt is left', runner, attempts, output, progress, checkpoint, trace_context,
         group_key, batch
  from gone
  where not exists (select from piecework.retention r where r.state = 'failed' and r.keep = interval '0')
),
-- Their keys and batches are looked at when a runner settles: this statement waits for no lock.
ended as (
  insert into piecework.key_todo (ordering_key, batch)
  select ordering_key, null from gone where ordering_key is not null
  union all
  select null, batch from gone where batch is not null and batch <> id
),
again as (
  update piecework.job j
  set state = 'pending', due_at = greatest(j.due_at, now()), group_state = case when j.group_key is not null then 2 end, claim = null, runner = null, started_at = null, deadline_at = null,
      last_error = l.error,
      attempts = case when jsonb_array_length(j.attempts) >= 20 then j.attempts - 0 else coalesce(j.attempts, '[]') end
        || jsonb_build_object('attempt', j.attempt, 'failure', 'host_lost', 'error', l.error, 'runner', j.runner, 'started_at', j.started_at)
  from lost l
  where j.id = any (array(select id from lost where not spent)) and j.id = l.id
  returning j.id, j.job_type
)
select id, job_type, true as failed from gone
union all
select id, job_type, false from again
