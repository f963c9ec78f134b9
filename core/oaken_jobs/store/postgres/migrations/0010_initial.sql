-- The same tables as SQLite's of that number. Numbers that are no floating point ones are bigint; what is yes or no is 0 or 1; JSON stays text.
create table marks (name text primary key, value bigint not null);
create sequence job_ids;
create sequence activity_ids;

-- Jobs without bodies: a large payload in this row would be written again at every claim, beat and finish.
create table jobs (
    id bigint primary key,
    workspace text not null,
    kind text not null,
    queue text not null,
    routed_by text not null,
    state text not null,
    priority bigint not null,
    title text,
    tags text,
    subject text,
    target text,
    dedupe_key text,
    serial_key text,
    parent_id bigint,
    max_attempts bigint not null,
    budget_usd double precision,
    created_at bigint not null,
    run_at bigint not null,
    expires_at bigint,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    schema_hash text,
    traceparent text,
    cancelling bigint not null default 0,
    cancel_deadline bigint,
    reason text,
    blocked bigint not null default 0,
    question text,
    joined bigint not null default 0,
    asked bigint not null default 0,
    attempts bigint not null default 0,
    lost bigint not null default 0,
    deferrals bigint not null default 0,
    coalesced bigint not null default 0,
    invalid_results bigint not null default 0,
    started_at bigint,
    finished_at bigint,
    epoch bigint not null default 0,
    nonce text,
    holder text,
    agent text,
    lease_expires bigint,
    lease_ms bigint,
    policy text,
    percent bigint,
    message text,
    progress_at bigint,
    progress_seq bigint,
    last_error text,
    usage text,
    cost_usd double precision,
    produced_by text,
    grade text,
    grade_why text,
    grade_version bigint
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05);

-- The claim walks this one, and nothing else: its cost does not depend on what is capped, future or finished.
create index jobs_runnable on jobs (workspace, queue, kind, priority desc, run_at, id)
    where state = 'queued' and blocked = 0;
create index jobs_running_kind on jobs (kind, lease_expires) where state = 'running';
create index jobs_running on jobs (lease_expires) where state = 'running';
create unique index jobs_dedupe on jobs (workspace, dedupe_key)
    where dedupe_key is not null and state in ('queued', 'running');
create unique index jobs_target on jobs (workspace, kind, target)
    where target is not null and state in ('queued', 'running');
create unique index jobs_serial_running on jobs (workspace, serial_key)
    where state = 'running' and serial_key is not null;
-- Of a key: the lanes its blocked jobs are in, and the first of each.
create index jobs_serial on jobs (workspace, serial_key, blocked, queue, kind, priority, run_at, id)
    where state = 'queued' and serial_key is not null;
create index jobs_expiring on jobs (expires_at) where state = 'queued' and expires_at is not null;
create index jobs_overruled on jobs (cancel_deadline) where state = 'running' and cancel_deadline is not null;
create index jobs_finished on jobs (finished_at) where finished_at is not null;
create index jobs_parent on jobs (parent_id) where parent_id is not null;
create index jobs_live_children on jobs (parent_id) where parent_id is not null and state in ('queued', 'running');
create index jobs_subject on jobs (subject) where subject is not null;
create index jobs_asking on jobs (id) where question is not null;
create index jobs_holder on jobs (holder) where state = 'running';

create table payloads (job_id bigint primary key, body text not null);
create table results (job_id bigint primary key, body text not null);

create table attempts (
    job_id bigint not null,
    epoch bigint not null,
    attempt bigint not null,
    agent text not null,
    holder text not null,
    nonce text not null,
    started_at bigint not null,
    ended_at bigint,
    outcome text,
    error text,
    usage text,
    cost_usd double precision,
    produced_by text,
    verb text,
    body_hash text,
    answer text,
    late_at bigint,
    primary key (job_id, epoch)
) with (fillfactor = 70);

-- Results whose lease was lost: they changed nothing, but may be adopted.
create table late_results (
    job_id bigint not null,
    epoch bigint not null,
    body text not null,
    usage text,
    cost_usd double precision,
    produced_by text,
    primary key (job_id, epoch)
);

-- The outbox. Ids, states and numbers only.
create table activity (
    id bigint primary key default nextval('activity_ids'),
    at bigint not null,
    event text not null,
    verb text not null,
    job_id bigint,
    name text,
    from_state text,
    to_state text,
    epoch bigint,
    attempt bigint,
    percent bigint,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    workspace text,
    data text
);
create index activity_job on activity (job_id, id) where job_id is not null;

create table progress (
    id bigint generated by default as identity primary key,
    job_id bigint not null,
    at bigint not null,
    percent bigint,
    message text,
    epoch bigint not null
);
create index progress_job on progress (job_id, id);

create table questions (
    id bigint generated by default as identity primary key,
    job_id bigint not null,
    epoch bigint not null,
    agent text not null,
    text text not null,
    asked_at bigint not null,
    answer text,
    answered_at bigint,
    actor_kind text,
    actor_id text,
    actor_via text
);
create index questions_job on questions (job_id, id);

create table idempotency (
    holder text not null,
    key text not null,
    hash text not null,
    at bigint not null,
    answer text not null,
    primary key (holder, key)
);
create index idempotency_at on idempotency (at);

create table queue_state (queue text primary key, paused bigint not null, at bigint not null);

create table labels (
    workspace text not null,
    subject text not null,
    layer text not null check (layer in ('machine', 'human')),
    key text not null,
    value text not null,
    at bigint not null,
    primary key (workspace, subject, layer, key)
);

create table agents (
    agent text primary key,
    name text not null,
    first_seen bigint not null,
    last_seen bigint not null,
    leased bigint not null,
    succeeded bigint not null,
    failed bigint not null,
    workspace text
);
create table drained (agent text primary key, at bigint not null);
create table leased_kinds (kind text primary key, at bigint not null);

-- queues and kinds are JSON arrays; null for any.
create table tokens (
    name text primary key,
    kind text not null,
    roles text not null,
    hash text not null unique,
    created_at bigint not null,
    expires_at bigint,
    revoked_at bigint,
    workspace text,
    queues text,
    kinds text,
    max_leases bigint,
    max_per_hour bigint,
    rotated_at bigint,
    last_used_at bigint
);
-- When tokens with a limit an hour took how many leases; older rows go when the token leases again.
create table token_leases (
    token text not null,
    at bigint not null,
    leases bigint not null,
    primary key (token, at)
);

create table processes (
    process text primary key,
    role text not null,
    pid bigint not null,
    host text not null,
    version text not null,
    started_at bigint not null,
    seen_at bigint not null
);

create table documents (
    workspace text not null,
    document text not null,
    title text,
    characters bigint not null,
    body text not null,
    created_at bigint not null,
    primary key (workspace, document)
);
create table document_sources (
    workspace text not null,
    document text not null,
    source text not null,
    at bigint not null,
    primary key (workspace, document, source)
);
create table embeddings (
    workspace text not null,
    subject text not null,
    model text not null,
    vector text not null,
    at bigint not null,
    primary key (workspace, subject, model)
);
-- Subjects whose text is to be triaged again when it is taken in the next time.
create table retriage (
    workspace text not null,
    subject text not null,
    at bigint not null,
    primary key (workspace, subject)
);

create table schedules (
    workspace text not null,
    name text not null,
    queue text not null,
    kind text not null,
    payload text not null,
    priority bigint not null,
    every_ms bigint,
    cron text,
    timezone text,
    anchor bigint not null,
    next_run bigint not null,
    last_run bigint,
    last_job bigint,
    owner text,
    created_at bigint not null,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    primary key (workspace, name)
);
create index schedules_due on schedules (next_run);

create table log_lines (
    id bigint generated by default as identity primary key,
    at bigint not null,
    level text not null,
    logger text not null,
    message text not null,
    process text not null
);
create index log_lines_at on log_lines (at);
create table audit (
    id bigint generated by default as identity primary key,
    at bigint not null,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    action text not null,
    outcome text not null,
    job_id bigint,
    agent text,
    rows bigint
);
create index audit_at on audit (at);
create table plugin_health (
    plugin text primary key,
    healthy bigint not null,
    reason text,
    at bigint not null
);
-- Handles on jobs, for callers that ask later. How one stands is read off its jobs.
create table tasks (
    id text primary key,
    actor_kind text not null,
    actor_id text not null,
    workspace text,
    job_ids text not null,
    said text not null,
    created_at bigint not null,
    look_at bigint not null
);
create index tasks_look on tasks (look_at);
