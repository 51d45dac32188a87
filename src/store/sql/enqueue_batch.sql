-- Enqueues a batch: $1 text, a JSON array of jobs; $2 text, a JSON object, the job that runs when all of them have ended.
-- Returns the id of that job.
select piecework.enqueue_batch($1::text::jsonb, $2::text::jsonb) as id
