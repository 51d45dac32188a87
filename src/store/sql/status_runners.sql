-- The runners that are alive or died less than an hour ago.
select r.id, r.name, r.version, r.state, r.slots, r.job_types, r.waiting,
       extract(epoch from r.lease_until - now())::float8 as lease_seconds,
       (select count(*) from piecework.job j where j.state = 'running' and j.runner = r.id) as running
from piecework.runner r
where r.state in ('live', 'stopping') or r.lease_until > now() - interval '1 hour'
order by r.id
