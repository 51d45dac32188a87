-- Decides about the ordering keys and batches that were noted, since a job of theirs is new or was ended by others: $1 int most notes at once.
-- Lets jobs with a group be claimed whose time has come. Returns how many notes and jobs that were.
select piecework.settle($1::int) + piecework.promote($1::int) as settled
