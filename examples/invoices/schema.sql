-- The application's own tables. There is no outbox table: the job is the outbox entry, written in the invoice's own transaction.
create schema if not exists shop;

create table if not exists shop.invoice (
  id bigint generated always as identity primary key,
  customer text not null,
  cents bigint not null check (cents > 0),
  created_at timestamptz not null default now()
);

-- Writes an invoice and what has to follow from it, both or neither. The key makes a second call for the same invoice harmless.
create or replace function shop.bill(customer text, cents bigint) returns bigint language plpgsql as $$
declare
  new_id bigint;
begin
  insert into shop.invoice (customer, cents) values (bill.customer, bill.cents) returning id into new_id;
  perform piecework.enqueue(
    'invoice-render',
    jsonb_build_object('invoice', new_id, 'to', bill.customer || '@example.com', 'cents', bill.cents),
    unique_key => 'invoice-' || new_id,
    group_key => bill.customer);
  return new_id;
end
$$;
