-- Enqueues one job: $1 text job type, $2 text payload (JSON), $3 text due time, $4 float8 delay in seconds, $5 int priority,
-- $6 int most attempts, $7 bigint parent, $8 text unique key, $9 float8 seconds that the key stays taken, $10 text ordering
-- key, $11 text group key; null stands for the default of piecework.enqueue. Returns the id.
select piecework.enqueue(
  job_type => $1::text, payload => $2::text::jsonb, due_at => $3::text::timestamptz,
  delay => make_interval(secs => $4::float8), priority => coalesce($5::int, 2), max_attempts => coalesce($6::int, 5),
  parent => $7::bigint, unique_key => $8::text, unique_for => make_interval(secs => $9::float8),
  ordering_key => $10::text, group_key => $11::text) as id
