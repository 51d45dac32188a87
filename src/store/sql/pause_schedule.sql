-- Pauses a schedule: $1 text name. False: it was already, or there is none.
select piecework.pause_schedule($1::text) as changed
