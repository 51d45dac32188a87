-- Lets the component with digest $2 bytea serve $3 int hundredths of a percent of the job type $1 text as a canary, which with $4 boolean ends
-- by itself when it is clearly worse.
select piecework.plugin_push($1::text, $2::bytea, canary => $3::int / 100.0, auto_rollback => $4::boolean)::text as answer
