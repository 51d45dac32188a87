-- Decides about keyed jobs that are new or whose predecessor somebody ended: $1 int most at once. Returns how many that were.
select piecework.settle($1::int) as settled
