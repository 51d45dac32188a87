-- Enqueues the jobs of a JSON array: $1 text. Returns the ids in its order.
select piecework.enqueue_many($1::text::jsonb) as id
