-- Unblocks the next job of each of these ordering keys: $1 text[]. Part of the transaction that writes the end of the jobs before.
select piecework.lock_keys($1::text[]), piecework.unblock($1::text[])
