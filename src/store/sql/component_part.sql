-- Keeps $3 bytea, the piece number $2 int (from 0) of the upload $1 bigint.
select piecework.component_part($1::bigint, $2::int, $3::bytea)
