-- Brings the queue's tables to the state that autovacuum keeps them in, before something is measured.
vacuum (analyze) piecework.job, piecework.job_history
