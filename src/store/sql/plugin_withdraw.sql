-- Lets the fleet serve the job type $1 text no more.
select piecework.plugin_withdraw($1::text)::text as answer
