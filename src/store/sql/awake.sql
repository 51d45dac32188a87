-- The runner is busy and looks by itself: enqueue need not notify it. $1 bigint runner. The row of one that was declared dead stays as it is.
update piecework.runner r set waiting = false
from (select set_config('synchronous_commit', 'off', true)) as s (setting)
where r.id = $1::bigint and r.waiting and r.state in ('live', 'stopping') and s.setting = 'off'
