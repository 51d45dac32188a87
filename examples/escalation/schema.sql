-- The application's own tables: alerts, and who is called in which order.
create schema if not exists oncall;

create table if not exists oncall.alert (
  id bigint generated always as identity primary key,
  service text not null,
  raised_at timestamptz not null default clock_timestamp(),
  acknowledged_at timestamptz,
  acknowledged_by text
);

-- Raises an alert: the first page is due at once, each page schedules the next one of the ladder. `ladder` is an array of
-- {"person": "ann", "wait": 900}, seconds until the next is paged.
create or replace function oncall.raise_alert(service text, ladder jsonb) returns bigint language plpgsql as $$
declare
  new_id bigint;
begin
  insert into oncall.alert (service) values (raise_alert.service) returning id into new_id;
  perform piecework.enqueue(
    'page',
    jsonb_build_object('alert', new_id, 'service', raise_alert.service, 'step', 0, 'ladder', ladder),
    unique_key => 'alert-' || new_id,
    max_attempts => 1000);
  return new_id;
end
$$;

-- Acknowledges an alert and cancels its ladder, wherever it is: the page that is waiting, or the call that is being made. Both or
-- neither. False when somebody else was first.
create or replace function oncall.acknowledge(alert bigint, person text) returns boolean language plpgsql as $$
begin
  update oncall.alert set acknowledged_at = clock_timestamp(), acknowledged_by = acknowledge.person
  where id = acknowledge.alert and acknowledged_at is null;
  if not found then
    return false;
  end if;
  perform piecework.cancel_by_key('page', 'alert-' || acknowledge.alert);
  return true;
end
$$;
