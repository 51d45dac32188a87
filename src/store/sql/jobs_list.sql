-- Lists jobs, newest first, without their payloads: $1 text state or null, $2 text job type or null, $3 int most rows.
select j.id, j.job_type, j.state::text as state, j.priority, j.due_at, j.attempt, j.max_attempts, j.enqueued_at, j.started_at,
       j.finished_at, j.runner, j.failure, j.last_error
from piecework.jobs j
where ($1::text is null or j.state = $1::text::piecework.job_state) and ($2::text is null or j.job_type = $2::text)
order by j.id desc
limit $3::int
