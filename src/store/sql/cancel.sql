-- Cancels a job: $1 bigint id. One row: the state that it has from now on, or null when there is no such job (any more).
select piecework.cancel($1::bigint) as state
