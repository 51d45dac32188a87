-- Ends a subscription: $1 text topic, $2 text job type. False: there was none.
select piecework.unsubscribe($1::text, $2::text) as changed
