-- The subscriptions, in order.
select s.topic, s.job_type from piecework.subscription s order by s.topic, s.job_type
