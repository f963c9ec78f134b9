create table schedules (
    workspace text not null,
    name text not null,
    queue text not null,
    kind text not null,
    payload text not null,
    priority integer not null,
    every_ms integer,
    cron text,
    timezone text,
    anchor integer not null,
    next_run integer not null,
    last_run integer,
    last_job integer,
    owner text,
    created_at integer not null,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    primary key (workspace, name)
) strict, without rowid;
create index schedules_due on schedules (next_run);
