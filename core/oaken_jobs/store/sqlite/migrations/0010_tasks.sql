-- Handles on jobs, for callers that ask later. How one stands is read off its jobs.
create table tasks (
    id text primary key,
    actor_kind text not null,
    actor_id text not null,
    workspace text,
    job_ids text not null,
    said text not null,
    created_at integer not null,
    look_at integer not null
) strict;
create index tasks_look on tasks (look_at);
