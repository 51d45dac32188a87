-- Removes a schedule: $1 text name. False: there is none.
select piecework.unschedule($1::text) as changed
