-- Jobs that ended by type and state: $1 float8 in how many seconds until now. `estimated` where there are too many to count.
select f.job_type,
       coalesce(sum(f.jobs) filter (where f.state = 'done'), 0)::bigint as done,
       coalesce(sum(f.jobs) filter (where f.state = 'failed'), 0)::bigint as failed,
       coalesce(sum(f.jobs) filter (where f.state = 'cancelled'), 0)::bigint as cancelled,
       array_remove(array_agg(distinct case when f.estimated then f.state end), null) as estimated
from piecework.finished_since(make_interval(secs => $1::float8)) f
group by f.job_type
order by f.job_type
