-- Pauses a job type: $1 text. False: it was already.
select piecework.pause($1::text) as changed
