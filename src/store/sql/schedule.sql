-- Makes or changes a schedule; the parameters are those of schedule_declare.sql. False: it stood there just like this.
select piecework.schedule(
  name => $1::text, job_type => $2::text, payload => $3::text::jsonb, priority => coalesce($4::int, 2),
  max_attempts => coalesce($5::int, 5), ordering_key => $6::text, cron => $7::text, zone => coalesce($8::text, 'UTC'),
  every => make_interval(secs => $9::float8), missed => coalesce($10::text, 'skip'), overlap => coalesce($11::text, 'allow'),
  tick_as => $12::text) as changed
