-- Completes the records of attempts that ran when their jobs were cancelled: $1 bigint[] id, $2 bigint[] claim, $3 bytea[]
-- plugin digest, $4 bigint[] run time in us, $5 bigint[] computing time in us, $6 bigint[] fuel, $7 bigint[] peak memory in
-- bytes, $8 int[] HTTP calls, $9 bigint[] their bytes, $10 bigint[] their time in us, $11 text[] captured output.
update piecework.job_history h
set plugin = a.plugin, run_us = a.run_us, cpu_us = a.cpu_us, fuel = a.fuel, peak_memory = a.peak_memory,
    http_calls = a.http_calls, http_bytes = a.http_bytes, http_us = a.http_us, output = a.output
from unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::int[],
            $9::bigint[], $10::bigint[], $11::text[])
     as a (id, claim, plugin, run_us, cpu_us, fuel, peak_memory, http_calls, http_bytes, http_us, output)
where h.id = any ($1::bigint[]) and h.id = a.id and h.claim = a.claim and h.state = 'cancelled'
