-- Resumes a job type: $1 text. False: it was not paused.
select piecework.resume($1::text) as changed
