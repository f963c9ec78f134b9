-- JSON arrays; null for any.
alter table tokens add column queues text;
alter table tokens add column kinds text;
alter table tokens add column max_leases integer;
alter table tokens add column max_per_hour integer;
alter table tokens add column rotated_at integer;
alter table tokens add column last_used_at integer;

-- When tokens with a limit an hour took how many leases; older rows go when the token leases again.
create table token_leases (
    token text not null,
    at integer not null,
    leases integer not null,
    primary key (token, at)
) strict, without rowid;
