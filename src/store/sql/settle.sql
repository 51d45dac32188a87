-- Decides about the ordering keys and batches that were noted, since a job of theirs is new or was ended by others: $1 int most notes at once.
-- Returns how many notes that were.
select piecework.settle($1::int) as settled
