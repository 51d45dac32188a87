-- The last $2 int changes of the job type $1 text, or of all when it is null, the newest first.
select to_char(h.at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as at, h.who, h.job_type, h.action, encode(h.from_digest, 'hex') as from_digest,
       encode(h.to_digest, 'hex') as to_digest,       h.percent::float8 as percent, h.reason, h.numbers::text as numbers, h.revision
from piecework.release_history h
where h.job_type = $1::text or $1::text is null
order by h.id desc limit $2::int
