-- Makes the history partitions of the days to come; returns how many were missing.
select piecework.make_history_partitions() as made
