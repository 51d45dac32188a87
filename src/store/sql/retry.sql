-- Starts a job anew: $1 bigint id. The state that it has from now on, or null when there is no such job (any more).
select piecework.retry($1::bigint) as state
