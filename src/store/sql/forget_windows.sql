-- Forgets unique keys whose window is over, and counts of starts whose interval is over.
with windows as (delete from piecework.unique_window w where w.until < now())
delete from piecework.start_count s where s.until < now()
