-- Puts the pieces of the upload $1 bigint together, which must have the digest $2 bytea, and stores the component with its signature $3 text
-- or null.
select piecework.component_join($1::bigint, $2::bytea, $3::text) as digest
