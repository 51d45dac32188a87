-- What the fleet shall serve: each job type with its stable version and its canary, and of both size and signature. A component that
-- somebody has deleted by hand has no size.
select r.job_type, r.revision, r.stable, s.size as stable_size, s.signature as stable_signature,
       r.canary, c.size as canary_size, c.signature as canary_signature, (r.canary_percent * 100)::int as share
from piecework.release r
left join piecework.component s on s.digest = r.stable
left join piecework.component c on c.digest = r.canary
where r.stable is not null
order by r.job_type
