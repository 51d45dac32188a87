-- Which of these rows other transactions have locked: $1 bigint[] id. Waits for none of them. A job that somebody cancels in
-- a transaction that stays open must not keep the results of the others from being written.
with free as materialized (
  select j.id from piecework.job j where j.id = any ($1::bigint[]) for update skip locked
)
select j.id from piecework.job j where j.id = any ($1::bigint[]) and j.id not in (select id from free)
