-- Jobs without bodies: a large payload in this row would be written to the log at every claim, beat and finish.
create table jobs (
    id integer primary key autoincrement,
    workspace text not null,
    kind text not null,
    queue text not null,
    routed_by text not null,
    state text not null,
    priority integer not null,
    title text,
    tags text,
    subject text,
    target text,
    dedupe_key text,
    parent_id integer,
    max_attempts integer not null,
    budget_usd real,
    created_at integer not null,
    run_at integer not null,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null,
    schema_hash text,
    cancelling integer not null default 0,
    reason text,
    blocked integer not null default 0,
    attempts integer not null default 0,
    lost integer not null default 0,
    deferrals integer not null default 0,
    coalesced integer not null default 0,
    invalid_results integer not null default 0,
    started_at integer,
    finished_at integer,
    epoch integer not null default 0,
    nonce text,
    holder text,
    agent text,
    lease_expires integer,
    lease_ms integer,
    policy text,
    percent integer,
    message text,
    progress_at integer,
    last_error text,
    usage text,
    cost_usd real,
    produced_by text,
    grade text,
    grade_why text,
    grade_version integer
) strict;

-- The claim walks this one, and nothing else: its cost does not depend on what is capped, future or finished.
create index jobs_runnable on jobs (workspace, queue, kind, priority desc, run_at, id)
    where state = 'queued' and blocked = 0;
create index jobs_running_kind on jobs (kind, lease_expires) where state = 'running';
create index jobs_running on jobs (lease_expires) where state = 'running';
create unique index jobs_dedupe on jobs (workspace, dedupe_key)
    where dedupe_key is not null and state in ('queued', 'running');
create unique index jobs_target on jobs (workspace, kind, target)
    where target is not null and state in ('queued', 'running');
create index jobs_finished on jobs (finished_at) where finished_at is not null;
create index jobs_parent on jobs (parent_id) where parent_id is not null;
create index jobs_subject on jobs (subject) where subject is not null;

create table payloads (job_id integer primary key, body text not null) strict;
create table results (job_id integer primary key, body text not null) strict;

create table attempts (
    job_id integer not null,
    epoch integer not null,
    attempt integer not null,
    agent text not null,
    holder text not null,
    nonce text not null,
    started_at integer not null,
    ended_at integer,
    outcome text,
    error text,
    usage text,
    cost_usd real,
    produced_by text,
    verb text,
    body_hash text,
    answer text,
    primary key (job_id, epoch)
) strict, without rowid;

-- The outbox. Ids, states and numbers only.
create table activity (
    id integer primary key autoincrement,
    at integer not null,
    event text not null,
    verb text not null,
    job_id integer,
    name text,
    from_state text,
    to_state text,
    epoch integer,
    attempt integer,
    percent integer,
    actor_kind text not null,
    actor_id text not null,
    actor_via text not null
) strict;
create index activity_job on activity (job_id, id) where job_id is not null;

create table progress (
    id integer primary key autoincrement,
    job_id integer not null,
    at integer not null,
    percent integer,
    message text,
    epoch integer not null
) strict;
create index progress_job on progress (job_id, id);

create table queue_state (queue text primary key, paused integer not null, at integer not null) strict, without rowid;

create table labels (
    subject text not null,
    layer text not null check (layer in ('machine', 'human')),
    key text not null,
    value text not null,
    at integer not null,
    primary key (subject, layer, key)
) strict, without rowid;

create table agents (
    agent text primary key,
    name text not null,
    first_seen integer not null,
    last_seen integer not null,
    leased integer not null,
    succeeded integer not null,
    failed integer not null
) strict, without rowid;
create table leased_kinds (kind text primary key, at integer not null) strict, without rowid;

create table tokens (
    name text primary key,
    kind text not null,
    roles text not null,
    hash text not null unique,
    created_at integer not null,
    expires_at integer,
    revoked_at integer
) strict, without rowid;

create table processes (
    process text primary key,
    role text not null,
    pid integer not null,
    host text not null,
    version text not null,
    started_at integer not null,
    seen_at integer not null
) strict, without rowid;

create table documents (
    document text primary key,
    title text,
    characters integer not null,
    body text not null,
    created_at integer not null
) strict;
create table document_sources (
    document text not null,
    source text not null,
    at integer not null,
    primary key (document, source)
) strict, without rowid;
create table embeddings (
    subject text not null,
    model text not null,
    vector text not null,
    at integer not null,
    primary key (subject, model)
) strict;
