-- Everything about one job: $1 bigint id. No row: there is no such job (any more). As JSON text, so that numbers keep
-- their digits.
select (to_jsonb(j) - 'plugin' || jsonb_build_object('plugin', encode(j.plugin, 'hex')))::text as job
from piecework.jobs j
where j.id = $1::bigint
