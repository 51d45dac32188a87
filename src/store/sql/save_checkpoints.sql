-- Writes checkpoints of running attempts, at once and fenced: $1 bigint[] id, each once, $2 bigint[] claim, $3 text[] name,
-- $4 text[] JSON. Returns what became of each: `written`, `locked` (somebody has locked the row: nothing was written), and no
-- row for those that are stale.
with mine as materialized (
  select j.id
  from piecework.job j
  join unnest($1::bigint[], $2::bigint[]) as c (id, claim) on j.id = c.id and j.claim = c.claim
  where j.id = any ($1::bigint[])
  for update of j skip locked
),
written as (
  update piecework.job j
  set checkpoint = coalesce(j.checkpoint, '{}') || jsonb_build_object(c.name, c.value::jsonb)
  from unnest($1::bigint[], $3::text[], $4::text[]) as c (id, name, value)
  where j.id = any (array(select id from mine)) and j.id = c.id
  returning j.id
)
select id, 'written' as came_to from written
union all
select j.id, 'locked'
from piecework.job j
join unnest($1::bigint[], $2::bigint[]) as c (id, claim) on j.id = c.id and j.claim = c.claim
where j.id = any ($1::bigint[]) and j.id not in (select id from mine)
