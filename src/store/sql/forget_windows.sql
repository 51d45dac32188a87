-- Forgets unique keys whose window is over.
delete from piecework.unique_window w where w.until < now()
