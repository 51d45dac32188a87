-- Rows beside those that are measured: $1 bigint finished jobs, $2 bigint jobs for the coming year, $3 text job type,
-- $4 bigint jobs that wait for an earlier one of their ordering key, $5 bigint due jobs of another type.
with finished as (
  insert into piecework.job_history (id, job_type, state, priority, due_at, attempt, max_attempts, enqueued_at, started_at, finished_at, payload)
  select -n, $3::text, 'done', 2, now(), 1, 5, now(), now(), now() - n * interval '1 millisecond', '{}'
  from generate_series(1, $1::bigint) n
  returning 1
),
future as (
  insert into piecework.job (job_type, due_at, payload)
  select $3::text, now() + interval '1 hour' + n * interval '30 seconds', '{}'
  from generate_series(1, $2::bigint) n
  returning 1
),
blocked as (
  insert into piecework.job (job_type, payload, ordering_key, blocked)
  select $3::text, '{}', 'key ' || n % 1000, true
  from generate_series(1, $4::bigint) n
  returning 1
),
unknown as (
  insert into piecework.job (job_type, payload)
  select 'unknown', '{}'
  from generate_series(1, $5::bigint) n
  returning 1
)
select (select count(*) from finished) as finished, (select count(*) from future) as future, (select count(*) from blocked) as blocked,
       (select count(*) from unknown) as unknown
