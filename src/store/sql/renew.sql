-- Renews a runner's lease: $1 bigint runner, $2 float8 seconds from now, $3 text[] job types it serves.
-- No row: the runner was declared dead; it stops its guests and registers anew.
-- A renewal lost in a crash of the database costs nothing, so it does not wait for the disk.
update piecework.runner r
set lease_until = now() + make_interval(secs => $2::float8), job_types = $3::text[]
from (select set_config('synchronous_commit', 'off', true)) as s (setting)
where r.id = $1::bigint and r.state in ('live', 'stopping') and s.setting = 'off'
returning r.id
