-- Completes the record of an attempt that ran when its job was cancelled: $1 bigint id, $2 bigint claim, $3 bytea plugin digest,
-- $4 bigint run time in us, $5 bigint computing time in us, $6 bigint fuel, $7 bigint peak memory in bytes, $8 int HTTP calls,
-- $9 bigint their bytes, $10 bigint their time in us, $11 text captured output. No row: the history has dropped the job.
update piecework.job_history h
set plugin = $3::bytea, run_us = $4::bigint, cpu_us = $5::bigint, fuel = $6::bigint, peak_memory = $7::bigint,
    http_calls = $8::int, http_bytes = $9::bigint, http_us = $10::bigint, output = $11::text
where h.id = $1::bigint and h.claim = $2::bigint and h.state = 'cancelled'
returning h.id
