-- All schedules, by name.
select s.name, s.state, s.source, s.job_type, s.cron, s.zone, extract(epoch from s.every)::float8 as every, s.next_tick, s.last_tick,
       s.last_job, s.problem, s.missed, s.overlap, s.payload::text as payload, s.priority, s.max_attempts, s.ordering_key, s.tick_as
from piecework.schedules s
order by s.name
