-- Of the component with digest $1 bytea the $3 int bytes that begin at $2 int, counted from 1.
select substring(bytes from $2::int for $3::int) as piece from piecework.component where digest = $1::bytea
