-- Ends the canary of the job type $1 text, or goes back to an earlier stable version, or with $2 bytea to that one.
select piecework.plugin_rollback($1::text, $2::bytea)::text as answer
