-- Publishes under a topic: $1 text topic, $2 text payload (JSON), $3 text due time, $4 float8 delay in seconds, $5 int priority,
-- $6 int most attempts, $7 text unique key, $8 float8 seconds that the key stays taken, $9 text ordering key, $10 text group key; null stands for the default of
-- piecework.publish. Returns how many jobs.
select piecework.publish(
  topic => $1::text, payload => $2::text::jsonb, due_at => $3::text::timestamptz,
  delay => make_interval(secs => $4::float8), priority => coalesce($5::int, 2), max_attempts => coalesce($6::int, 5),
  unique_key => $7::text, unique_for => make_interval(secs => $8::float8),
  ordering_key => $9::text, group_key => $10::text) as jobs
