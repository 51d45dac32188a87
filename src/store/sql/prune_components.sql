-- Forgets components that nobody can want any more; how many.
select piecework.prune_components() as gone
