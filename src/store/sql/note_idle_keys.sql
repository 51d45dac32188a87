-- Notes the ordering keys whose jobs all wait although none is under way, and the batches without a job whose last job still waits, so
-- that the next settle looks at them: $1 int most of each. It happens when a runner of an older version, which knows neither, ends
-- a job. Returns the notes.
insert into piecework.key_todo (ordering_key, batch)
(select k.ordering_key, null
from (select distinct j.ordering_key from piecework.job j where j.ordering_key is not null and j.blocked) k
left join lateral (
  select true as taken from piecework.job o where o.ordering_key = k.ordering_key and (not o.blocked or o.group_state > 0) order by o.id limit 1) o on true
where o.taken is null
limit $1::int)
union all
(select null, b.batch
from piecework.job b
left join lateral (
  select true as found from piecework.job m where m.batch = b.batch and m.id <> b.id order by m.id limit 1) m on true
where b.batch is not null and b.batch = b.id and b.state = 'pending' and b.blocked and coalesce(b.group_state, 0) = 0 and m.found is null
limit $1::int)
returning ordering_key, batch
