-- Gives back jobs that a runner claimed without knowing it (the answer was lost): $1 bigint runner, $2 bigint[] claims that
-- it knows, $3 float8 seconds since the claim. They never started, so the attempt is refunded. Returns the ids.
update piecework.job j
set state = 'pending', attempt = j.attempt - 1, due_at = greatest(j.due_at, now()),
    group_state = case when j.group_key is not null then 2 end, claim = null, runner = null, started_at = null, deadline_at = null
where j.state = 'running' and j.runner = $1::bigint and j.claim <> all ($2::bigint[])
  and j.started_at < now() - make_interval(secs => $3::float8)
returning j.id
