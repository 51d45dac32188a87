-- Puts a schedule of a runner's settings into the table, or brings it up to date: $1 text name, $2 text job type, $3 text payload
-- (JSON), $4 int priority, $5 int most attempts, $6 text ordering key, $7 text cron expression, $8 text time zone, $9 float8 seconds
-- of the interval, $10 text missed, $11 text overlap, $12 text tick_as; null stands for the default. Other times count from now on.
-- No row: the name belongs to a schedule that was made by SQL, which stays as it is.
insert into piecework.schedule as s (
  name, source, job_type, payload, priority, max_attempts, ordering_key, cron, zone, every, missed, overlap, tick_as)
values ($1::text, 'file', $2::text, $3::text::jsonb, coalesce($4::int, 2), coalesce($5::int, 5), $6::text, $7::text,
        coalesce($8::text, 'UTC'), make_interval(secs => $9::float8), coalesce($10::text, 'skip'), coalesce($11::text, 'allow'),
        $12::text)
on conflict (name) do update set
  job_type = excluded.job_type, payload = excluded.payload, priority = excluded.priority, max_attempts = excluded.max_attempts,
  ordering_key = excluded.ordering_key, cron = excluded.cron, zone = excluded.zone, every = excluded.every,
  missed = excluded.missed, overlap = excluded.overlap, tick_as = excluded.tick_as, problem = null,
  declared_at = clock_timestamp(), revision = excluded.revision,
  next_tick = case when (s.cron, s.zone, s.every) is distinct from (excluded.cron, excluded.zone, excluded.every) then null
                   else s.next_tick end
where s.source = 'file'
returning s.name
