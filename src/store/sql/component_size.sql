-- How many bytes the component with digest $1 bytea has. No row: there is none.
select size from piecework.component where digest = $1::bytea
