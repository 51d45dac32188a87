-- Lists pending or running jobs, newest first, without their payloads: $1 text state, $2 text job type or null, $3 int most rows.
select j.id, j.job_type, j.state::text as state, j.priority, j.due_at, j.attempt, j.max_attempts, j.enqueued_at, j.started_at,
       null::timestamptz as finished_at, j.runner, null::text as failure, j.last_error
from piecework.job j
where j.state = $1::text::piecework.job_state and ($2::text is null or j.job_type = $2::text)
order by j.id desc
limit $3::int
