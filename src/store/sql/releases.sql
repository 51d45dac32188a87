-- What the fleet serves, with the attempts of both versions since the canary began.
select r.job_type, encode(r.stable, 'hex') as stable, to_char(r.stable_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as stable_since,
       encode(r.canary, 'hex') as canary, r.canary_percent::float8 as percent, to_char(r.canary_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as canary_since,
       r.auto_rollback, to_char(r.pinned_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as pinned_at, r.pinned_by, r.revision,
       s.done as stable_done, s.failed as stable_failed, c.done as canary_done, c.failed as canary_failed
from piecework.release r
cross join lateral (
  select coalesce(sum(n.done), 0)::bigint as done, coalesce(sum(n.failed), 0)::bigint as failed from piecework.canary_count n
  where n.job_type = r.job_type and n.revision = r.revision and n.digest = r.stable) s
cross join lateral (
  select coalesce(sum(n.done), 0)::bigint as done, coalesce(sum(n.failed), 0)::bigint as failed from piecework.canary_count n
  where n.job_type = r.job_type and n.revision = r.revision and n.digest = r.canary) c
where r.stable is not null
order by r.job_type
