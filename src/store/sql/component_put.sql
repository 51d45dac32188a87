-- Stores the component $1 bytea with its signature $2 text or null.
select piecework.component_put($1::bytea, $2::text) as digest
