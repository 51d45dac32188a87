-- Drops history that has been kept long enough, at most ten tables. What was dropped, how many jobs where they were deleted one by
-- one, and what could not be dropped now. No row: there is nothing (more) to drop.
select d.dropped, d.jobs, d.put_off from piecework.drop_old_history() d
