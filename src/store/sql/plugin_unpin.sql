-- Lets the job type $1 text be changed again.
select piecework.plugin_unpin($1::text)::text as answer
