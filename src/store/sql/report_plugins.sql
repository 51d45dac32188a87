-- Writes what the runner $1 bigint says of its plugins, $3 text, a JSON array; $2 boolean: it takes plugins from the fleet.
insert into piecework.runner_plugins as p (runner, fleet, plugins)
select r.id, $2::boolean, $3::text::jsonb from piecework.runner r where r.id = $1::bigint
on conflict (runner) do update set at = clock_timestamp(), fleet = excluded.fleet, plugins = excluded.plugins
