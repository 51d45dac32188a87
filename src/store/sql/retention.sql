-- How long ended jobs are kept: by state, in seconds.
select r.state::text as state, extract(epoch from r.keep)::float8 as keep_seconds
from piecework.retention r
order by r.state
