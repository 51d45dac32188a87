-- Registers a runner under a new id: $1 text name, $2 text version, $3 int slots, $4 text[] job types,
-- $5 float8 seconds of the lease, $6 text[] the schedules of its settings.
insert into piecework.runner (name, version, slots, job_types, lease_until, schedules)
values ($1::text, $2::text, $3::int, $4::text[], now() + make_interval(secs => $5::float8), $6::text[])
returning id
