-- Resumes a schedule: $1 text name. False: it was not paused.
select piecework.resume_schedule($1::text) as changed
