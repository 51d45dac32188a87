-- Says which schedules the settings of a runner have now: $1 bigint runner, $2 text[] their names.
update piecework.runner
set schedules = $2::text[]
where id = $1::bigint
