-- What the queue's users hold while handlers run: transactions older than $1 float8 seconds, the oldest transaction in
-- seconds, and the row locks of transactions that old. Sessions of this database other than this one.
select count(*) filter (where old) as old_transactions,
       coalesce(max(extract(epoch from age)), 0)::float8 as oldest_seconds,
       coalesce(sum(locks) filter (where old), 0)::bigint as row_locks
from (
  select clock_timestamp() - a.xact_start as age, clock_timestamp() - a.xact_start > make_interval(secs => $1::float8) as old,
         (select count(*) from pg_locks l
          where l.pid = a.pid and l.locktype = 'relation' and l.mode in ('RowShareLock', 'RowExclusiveLock')
            and l.relation = 'piecework.job'::regclass) as locks
  from pg_stat_activity a
  where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    and a.xact_start is not null) t
