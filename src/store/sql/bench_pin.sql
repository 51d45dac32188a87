-- Takes the snapshot that a transaction holds from then on.
select count(*) from piecework.runner
