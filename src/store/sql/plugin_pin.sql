-- Keeps the job type $1 text at its stable version, or at the version $2 bytea.
select piecework.plugin_pin($1::text, $2::bytea)::text as answer
