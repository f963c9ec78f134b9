create table audit (
    id integer primary key autoincrement,
    at integer not null,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    action text not null,
    outcome text not null,
    job_id integer,
    agent text,
    rows integer
) strict;
create index audit_at on audit (at);
