-- The runner is busy and looks by itself: enqueue need not notify it. $1 bigint runner.
update piecework.runner r set waiting = false
from (select set_config('synchronous_commit', 'off', true)) as s (setting)
where r.id = $1::bigint and r.waiting and s.setting = 'off'
