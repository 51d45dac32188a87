-- Writes how far attempts are, at once and fenced: $1 bigint[] id, $2 bigint[] claim, $3 int[] percent, $4 text[] message.
-- Returns the ids that were written. A row that somebody has locked is left out: the next report comes soon.
with mine as materialized (
  select j.id
  from piecework.job j
  join unnest($1::bigint[], $2::bigint[]) as p (id, claim) on j.id = p.id and j.claim = p.claim
  where j.id = any ($1::bigint[])
  for update of j skip locked
)
update piecework.job j
set progress = jsonb_build_object('percent', p.percent, 'message', p.message, 'at', now())
from unnest($1::bigint[], $3::int[], $4::text[]) as p (id, percent, message)
where j.id = any (array(select id from mine)) and j.id = p.id
returning j.id
