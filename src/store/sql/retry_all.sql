-- Starts jobs anew: $1 text job type or null for all, $2 text state (failed or cancelled), $3 int most. Returns how many.
select piecework.retry_all(job_type => $1::text, state => $2::text, most => $3::int) as started
