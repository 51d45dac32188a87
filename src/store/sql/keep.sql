-- From now on keeps jobs that ended in state $1 text for $2 float8 seconds; 0 keeps none. Whether that changed anything.
select piecework.keep($1::text, justify_hours(make_interval(secs => $2::float8))) as changed
