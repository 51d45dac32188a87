-- Cancels the job that has a key, and its chain: $1 text job type, $2 text unique key. Returns how many were cancelled.
select piecework.cancel_by_key($1::text, $2::text) as cancelled
