-- Pending and running jobs by type: how many are due, wait for an earlier job of their key, wait for their time, or run, how long the
-- oldest due one has waited, whether some live runner serves the type, and whether it is paused.
--
-- Running jobs are counted. Of the others each index is read up to 10,000 entries for a type, a priority and a question, however many
-- there are; `estimated` names the numbers that are larger, which come from a sample of about 1,000 pages (8 MB) of the table.
with recursive
-- The types in the claim index, one look for each.
ready (job_type) as (
  (select j.job_type from piecework.job j where j.state = 'pending' and not j.blocked order by j.job_type limit 1)
  union all
  select (select j.job_type from piecework.job j
          where j.state = 'pending' and not j.blocked and j.job_type > r.job_type order by j.job_type limit 1)
  from ready r where r.job_type is not null
),
-- The types in job_blocked.
held (job_type) as (
  (select j.job_type from piecework.job j where j.state = 'pending' and j.blocked and coalesce(j.group_state, 0) = 0 order by j.job_type limit 1)
  union all
  select (select j.job_type from piecework.job j
          where j.state = 'pending' and j.blocked and coalesce(j.group_state, 0) = 0 and j.job_type > h.job_type order by j.job_type limit 1)
  from held h where h.job_type is not null
),
-- Those whose jobs have groups: ready, and for later.
grouped (job_type) as (
  (select j.job_type from piecework.job j where j.state = 'pending' and j.group_state = 2 order by j.job_type limit 1)
  union all
  select (select j.job_type from piecework.job j
          where j.state = 'pending' and j.group_state = 2 and j.job_type > g.job_type order by j.job_type limit 1)
  from grouped g where g.job_type is not null
),
grouped_later (job_type) as (
  (select j.job_type from piecework.job j where j.state = 'pending' and j.group_state = 1 order by j.job_type limit 1)
  union all
  select (select j.job_type from piecework.job j
          where j.state = 'pending' and j.group_state = 1 and j.job_type > g.job_type order by j.job_type limit 1)
  from grouped_later g where g.job_type is not null
),
-- One arm for each index. The sorts are none, since the indexes have that order; without them the planner would take the
-- first 10,000 rows of a scan of the table.
counted as materialized (
  select r.job_type, d.n as due, 0 as blocked, l.n as later, 0 as running, d.oldest
  from ready r
  cross join generate_series(1, 4) p
  -- One look for both: under a pinned horizon it wades through what was claimed before, 60 ms for 400,000 entries.
  cross join lateral (
    select count(*) as n, min(j.due_at) as oldest from (
      select j.due_at from piecework.job j
      where j.state = 'pending' and not j.blocked and j.job_type = r.job_type and j.priority = p and j.due_at <= now()
      order by j.due_at, j.id limit 10000) j) d
  cross join lateral (
    select count(*) as n from (
      select from piecework.job j
      where j.state = 'pending' and not j.blocked and j.job_type = r.job_type and j.priority = p and j.due_at > now()
      order by j.due_at, j.id limit 10000) j) l
  where r.job_type is not null
  union all
  select h.job_type, 0, d.n, l.n, 0, null
  from held h
  cross join lateral (
    select count(*) as n from (
      select from piecework.job j
      where j.state = 'pending' and j.blocked and coalesce(j.group_state, 0) = 0 and j.job_type = h.job_type and j.due_at <= now()
      order by j.due_at limit 10000) j) d
  cross join lateral (
    select count(*) as n from (
      select from piecework.job j
      where j.state = 'pending' and j.blocked and coalesce(j.group_state, 0) = 0 and j.job_type = h.job_type and j.due_at > now()
      order by j.due_at limit 10000) j) l
  where h.job_type is not null
  union all
  -- In the order of the index, so the oldest of more than 10,000 may be another.
  select g.job_type, d.n, 0, 0, 0, d.oldest
  from grouped g
  cross join generate_series(1, 4) p
  cross join lateral (
    select count(*) as n, min(j.due_at) as oldest from (
      select j.due_at from piecework.job j
      where j.state = 'pending' and j.group_state = 2 and j.job_type = g.job_type and j.priority = p
      order by j.group_key, j.due_at, j.id limit 10000) j) d
  where g.job_type is not null
  union all
  -- What is due here is let in any moment.
  select g.job_type, 0, 0, l.n, 0, null
  from grouped_later g
  cross join lateral (
    select count(*) as n from (
      select from piecework.job j
      where j.state = 'pending' and j.group_state = 1 and j.job_type = g.job_type
      order by j.due_at limit 10000) j) l
  where g.job_type is not null
  union all
  select j.job_type, 0, 0, 0, count(*), null from piecework.job j where j.state = 'running' group by j.job_type
),
total as materialized (
  select c.job_type, sum(c.due)::bigint as due, sum(c.blocked)::bigint as blocked, sum(c.later)::bigint as later,
         sum(c.running)::bigint as running, min(c.oldest) as oldest,
         max(c.due) >= 10000 as more_due, max(c.blocked) >= 10000 as more_blocked, max(c.later) >= 10000 as more_later
  from counted c
  group by c.job_type
),
share as (
  select least(1, 1000.0 * current_setting('block_size')::int / greatest(pg_relation_size('piecework.job'), 1))::float8 as share
),
-- Read only when a number below asks for it.
sampled as materialized (
  select j.job_type,
         count(*) filter (where j.due_at <= now() and (not j.blocked or j.group_state = 2)) / s.share as due,
         count(*) filter (where j.due_at <= now() and j.blocked and coalesce(j.group_state, 0) = 0) / s.share as blocked,
         count(*) filter (where j.due_at > now()) / s.share as later
  from share s, piecework.job j tablesample system (
    100 * least(1, 1000.0 * current_setting('block_size')::int / greatest(pg_relation_size('piecework.job'), 1)))
  where j.state = 'pending'
  group by j.job_type, s.share
)
select t.job_type,
       case when t.more_due then greatest(t.due, (select s.due::bigint from sampled s where s.job_type = t.job_type)) else t.due end as due,
       case when t.more_blocked then greatest(t.blocked, (select s.blocked::bigint from sampled s where s.job_type = t.job_type))
            else t.blocked end as blocked,
       case when t.more_later then greatest(t.later, (select s.later::bigint from sampled s where s.job_type = t.job_type))
            else t.later end as later,
       t.running,
       extract(epoch from now() - t.oldest)::float8 as oldest_due_seconds,
       array_remove(array[case when t.more_due then 'due' end, case when t.more_blocked then 'blocked' end,
                          case when t.more_later then 'later' end], null) as estimated,
       exists (
         select from piecework.runner r
         where r.state = 'live' and r.lease_until > now() and t.job_type = any (r.job_types)) as served,
       exists (select from piecework.paused p where p.job_type = t.job_type) as paused
from total t
order by t.job_type
