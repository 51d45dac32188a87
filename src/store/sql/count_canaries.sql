-- Writes the attempts that the process $1 bigint has counted since each canary began: of the job types $2 text[], the versions $3 bytea[]
-- and the revisions $4 bigint[], $5 bigint[] that went well and $6 bigint[] that did not.
select piecework.count_canaries($1::bigint, $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[])
