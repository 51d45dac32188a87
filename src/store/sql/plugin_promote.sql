-- Makes the canary of the job type $1 text its stable version; with $2 bytea only if that is its digest.
select piecework.plugin_promote($1::text, $2::bytea)::text as answer
