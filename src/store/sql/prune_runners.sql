-- Forgets runners that ended more than a day ago and have no job left.
delete from piecework.runner r
where r.state in ('dead', 'stopped') and r.lease_until < now() - interval '1 day'
  and not exists (select from piecework.job j where j.state = 'running' and j.runner = r.id)
