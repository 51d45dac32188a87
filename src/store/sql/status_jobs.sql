-- Pending and running jobs by type: how many are due, wait for an earlier job of their key, wait for their time, or run, how long the oldest due one has waited,
-- whether some live runner serves the type, and whether it is paused.
select j.job_type,
       count(*) filter (where j.state = 'pending' and j.due_at <= now() and not j.blocked) as due,
       count(*) filter (where j.state = 'pending' and j.due_at <= now() and j.blocked) as blocked,
       count(*) filter (where j.state = 'pending' and j.due_at > now()) as later,
       count(*) filter (where j.state = 'running') as running,
       extract(epoch from now() - min(j.due_at) filter (where j.state = 'pending' and j.due_at <= now() and not j.blocked))::float8 as oldest_due_seconds,
       exists (
         select from piecework.runner r
         where r.state = 'live' and r.lease_until > now() and j.job_type = any (r.job_types)) as served,
       exists (select from piecework.paused p where p.job_type = j.job_type) as paused
from piecework.job j
group by j.job_type
order by j.job_type
