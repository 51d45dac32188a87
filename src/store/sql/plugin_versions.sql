-- The versions that the job type $1 text has had and whose digests in hex begin with $2 text.
select distinct v.digest
from piecework.release_history h
cross join lateral (values (h.from_digest), (h.to_digest)) as v (digest)
where h.job_type = $1::text and starts_with(encode(v.digest, 'hex'), $2::text)
order by v.digest
