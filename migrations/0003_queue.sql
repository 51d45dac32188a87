-- The text of a payload, for a runner that claims its job; null when it is larger than 1 MiB. The enqueue functions let none of
-- those in, but whoever writes to the table can, and 144 KB of numbers such as 1e131071 are more text than PostgreSQL can make:
-- without the handler one such row would fail every claim that meets it. 0.7 us a job more than the plain cast.
create function piecework.payload_text(payload jsonb) returns text language plpgsql stable as $$
declare
  body text;
begin
  -- 1 MiB of text is at most four times as much in binary form, in numbers of one digit. The array is a way to ask for the size
  -- before compression: 7 ms for 20 MiB, in place of 80 ms for the text.
  if pg_column_size(payload_text.payload) > 8192 and pg_column_size(array[payload_text.payload]) > 5242880 then
    return null;
  end if;
  body := payload_text.payload::text;
  return case when octet_length(body) <= 1048576 then body end;
exception when out_of_memory or program_limit_exceeded then
  return null;
end $$;

-- Runners need not own the schema: a partition is made with the rights of its owner.
alter function piecework.make_history_partitions(int) security definer set search_path = pg_catalog, pg_temp;

revoke execute on function piecework.payload_text(jsonb), piecework.make_history_partitions(int) from public;
