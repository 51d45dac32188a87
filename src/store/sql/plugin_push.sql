-- Lets the component with digest $2 bytea serve all of the job type $1 text.
select piecework.plugin_push($1::text, $2::bytea)::text as answer
