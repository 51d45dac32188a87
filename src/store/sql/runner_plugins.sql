-- What the live runners say of their plugins; null for those that say nothing, being older.
select r.id, r.name, r.version, p.fleet, p.plugins::text as plugins, extract(epoch from clock_timestamp() - p.at)::float8 as age_seconds
from piecework.runner r
left join piecework.runner_plugins p on p.runner = r.id
where r.state = 'live' and r.lease_until > now()
order by r.id
