-- How a job stands: $1 bigint id. No row: there is no such job (any more).
select j.state::text as state, j.attempt, j.failure, j.last_error, j.result::text as result
from piecework.jobs j
where j.id = $1::bigint
