-- What the server has written and committed so far in this database.
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal_bytes, d.xact_commit as commits,
       current_setting('server_version') as version,
       format('fsync %s, synchronous_commit %s, shared_buffers %s', current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')) as settings
from pg_stat_database d
where d.datname = current_database()
