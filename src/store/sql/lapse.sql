-- Marks runners dead whose lease ran out, by the clock of the database. From then on they cannot renew: they must register
-- anew. Their jobs are taken back by reap.sql. Returns the runners.
update piecework.runner
set state = 'dead', waiting = false
where id = any (array(
  select id from piecework.runner
  where state in ('live', 'stopping') and lease_until < now()
  for update skip locked))
returning id, name
