-- Lists jobs that ended, newest first, without their payloads: $1 text state, $2 text job type or null, $3 int most rows.
-- Opens the tables of that state alone, and reads them side by side from their newest ids on until there are enough rows. So only a
-- type of which there are less than that reads all of the state.
select h.id, h.job_type, h.state::text as state, h.priority, h.due_at, h.attempt, h.max_attempts, h.enqueued_at, h.started_at,
       h.finished_at, h.runner, h.failure, h.last_error
from piecework.job_history h
where h.state = $1::text::piecework.job_state and ($2::text is null or h.job_type = $2::text)
order by h.id desc
limit $3::int
