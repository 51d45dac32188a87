-- Says that a runner takes no more jobs ('stopping') or has ended ('stopped'): $1 bigint runner, $2 text state.
update piecework.runner
set state = $2::text, waiting = false, lease_until = case when $2::text = 'stopped' then now() else lease_until end
where id = $1::bigint and state <> 'dead'
