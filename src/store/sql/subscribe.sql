-- Subscribes a job type to a topic: $1 text topic, $2 text job type. False: it was already.
select piecework.subscribe($1::text, $2::text) as changed
