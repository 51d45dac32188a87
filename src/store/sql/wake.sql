-- Wakes the runners that wait for these job types: $1 text[].
select piecework.wake($1::text[])
