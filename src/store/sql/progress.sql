-- Writes how far attempts are, at once and fenced: $1 bigint[] id, $2 bigint[] claim, $3 int[] percent, $4 text[] message.
-- Returns the ids that were written.
update piecework.job j
set progress = jsonb_build_object('percent', p.percent, 'message', p.message, 'at', now())
from unnest($1::bigint[], $2::bigint[], $3::int[], $4::text[]) as p (id, claim, percent, message)
where j.id = any ($1::bigint[]) and j.id = p.id and j.claim = p.claim
returning j.id
