-- Numbers that are about no row.
create table marks (name text primary key, value integer not null) strict, without rowid;
