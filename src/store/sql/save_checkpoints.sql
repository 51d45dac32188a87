-- Writes checkpoints of running attempts, at once and fenced: $1 bigint[] id, each once, $2 bigint[] claim, $3 text[] name,
-- $4 text[] JSON. Returns the ids that were written; what is missing is stale.
update piecework.job j
set checkpoint = coalesce(j.checkpoint, '{}') || jsonb_build_object(c.name, c.value::jsonb)
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) as c (id, claim, name, value)
where j.id = any ($1::bigint[]) and j.id = c.id and j.claim = c.claim
returning j.id
