-- The newest migration that this database has. Fails with 42P01 or 3F000 where nothing was migrated yet.
select coalesce(max(version), 0) as version from piecework.migration
