-- Lists jobs in whatever state, newest first, without their payloads: $1 text job type or null, $2 int most rows.
select j.id, j.job_type, j.state::text as state, j.priority, j.due_at, j.attempt, j.max_attempts, j.enqueued_at, j.started_at,
       j.finished_at, j.runner, j.failure, j.last_error
from piecework.jobs j
where $1::text is null or j.job_type = $1::text
order by j.id desc
limit $2::int
