-- Notes the ordering keys whose jobs all wait although none is under way, so that the next settle looks at them: $1 int most. It
-- happens when a runner of version 1, which knows no keys, ends a keyed job. Returns the keys.
insert into piecework.key_todo (ordering_key)
select k.ordering_key
from (select distinct j.ordering_key from piecework.job j where j.ordering_key is not null and j.blocked) k
left join lateral (
  select true as taken from piecework.job o where o.ordering_key = k.ordering_key and not o.blocked limit 1) o on true
where o.taken is null
limit $1::int
returning ordering_key
