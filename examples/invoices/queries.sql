-- What an operator asks; each can be pasted into psql.

-- Which invoices have no mail yet, and why?
select payload ->> 'invoice' as invoice, job_type, state, attempt, due_at, last_error
from piecework.jobs
where job_type in ('invoice-render', 'invoice-mail') and state in ('pending', 'running', 'failed')
order by due_at limit 20;

-- What happened to invoice 7?
select id, job_type, state, attempt, attempts, result, last_error
from piecework.jobs
where job_type in ('invoice-render', 'invoice-mail') and payload ->> 'invoice' = '7';

-- How long do mails take, from the invoice to the provider's answer?
select count(*) as mails,
       percentile_disc(0.5) within group (order by j.finished_at - i.created_at) as half,
       percentile_disc(0.99) within group (order by j.finished_at - i.created_at) as nearly_all
from piecework.jobs j join shop.invoice i on i.id = (j.payload ->> 'invoice')::bigint
where j.job_type = 'invoice-mail' and j.state = 'done';
