-- What is about to page? The next twenty, with who will be called.
select j.due_at, j.due_at - now() as "in", a.id as alert, a.service,
       j.payload -> 'ladder' -> (j.payload ->> 'step')::int ->> 'person' as person, j.attempt, j.last_error
from piecework.jobs j join oncall.alert a on a.id = (j.payload ->> 'alert')::bigint
where j.job_type = 'page' and j.state = 'pending'
order by j.due_at limit 20;

-- Who is being called at this moment?
select a.id as alert, a.service, j.payload -> 'ladder' -> (j.payload ->> 'step')::int ->> 'person' as person,
       now() - j.started_at as "for", j.runner
from piecework.jobs j join oncall.alert a on a.id = (j.payload ->> 'alert')::bigint
where j.job_type = 'page' and j.state = 'running';

-- Does the assumption still hold that a page goes out within 30 s of its time? Watch `late` and `oldest`, and alert on them by other means
-- than this one: when `oldest` passes 10 s there is no third of the margin left, and when `per_minute` has been at what the limits of
-- runner.toml let through (fleet_concurrency times 60 s, divided by the time of a page) the limits are what holds pages back.
select count(*) filter (where state = 'pending' and due_at < now()) as late,
       coalesce(max(now() - due_at) filter (where state = 'pending' and due_at < now()), interval '0') as oldest,
       count(*) filter (where state = 'running') as calling,
       count(*) filter (where state = 'done' and finished_at > now() - interval '1 minute') as per_minute,
       percentile_disc(0.99) within group (order by started_at - due_at)
         filter (where state = 'done' and finished_at > now() - interval '1 hour') as pick_up,
       count(*) filter (where state = 'failed' and finished_at > now() - interval '1 day') as failed
from piecework.jobs
where job_type = 'page' and (finished_at is null or finished_at > now() - interval '1 day');

-- The story of alert 7.
select state, payload ->> 'step' as step, due_at, started_at, finished_at, attempt, result, last_error
from piecework.jobs
where job_type = 'page' and payload ->> 'alert' = '7'
order by id;
