-- Says why a schedule cannot tick: $1 text name, $2 bigint the revision that was read, $3 text the reason.
update piecework.schedule s set problem = $3::text, next_tick = null where s.name = $1::text and s.revision = $2::bigint
