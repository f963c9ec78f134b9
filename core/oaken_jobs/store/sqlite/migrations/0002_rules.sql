alter table jobs add column serial_key text;
alter table jobs add column expires_at integer;
alter table jobs add column cancel_deadline integer;
alter table jobs add column question text;
alter table jobs add column joined integer not null default 0;
alter table jobs add column asked integer not null default 0;
alter table jobs add column progress_seq integer;
update jobs set cancel_deadline = lease_expires + 300000 where cancelling and state = 'running';

create unique index jobs_serial_running on jobs (workspace, serial_key)
    where state = 'running' and serial_key is not null;
-- Of a key: the lanes its blocked jobs are in, and the first of each.
create index jobs_serial on jobs (workspace, serial_key, blocked, queue, kind, priority, run_at, id)
    where state = 'queued' and serial_key is not null;
create index jobs_expiring on jobs (expires_at) where state = 'queued' and expires_at is not null;
create index jobs_overruled on jobs (cancel_deadline) where state = 'running' and cancel_deadline is not null;
create index jobs_live_children on jobs (parent_id) where parent_id is not null and state in ('queued', 'running');
create index jobs_asking on jobs (id) where question is not null;
create index jobs_holder on jobs (holder) where state = 'running';

alter table attempts add column late_at integer;
-- Results whose lease was lost: they changed nothing, but may be adopted.
create table late_results (
    job_id integer not null,
    epoch integer not null,
    body text not null,
    usage text,
    cost_usd real,
    produced_by text,
    primary key (job_id, epoch)
) strict;

create table questions (
    id integer primary key autoincrement,
    job_id integer not null,
    epoch integer not null,
    agent text not null,
    text text not null,
    asked_at integer not null,
    answer text,
    answered_at integer,
    actor_kind text,
    actor_id text,
    actor_via text
) strict;
create index questions_job on questions (job_id, id);

create table idempotency (
    holder text not null,
    key text not null,
    hash text not null,
    at integer not null,
    answer text not null,
    primary key (holder, key)
) strict, without rowid;
create index idempotency_at on idempotency (at);

alter table activity add column workspace text;

alter table tokens add column workspace text;
alter table agents add column workspace text;
create table drained (agent text primary key, at integer not null) strict, without rowid;

-- Subjects, and what is kept about them, belong to a workspace.
create table labels_of (
    workspace text not null,
    subject text not null,
    layer text not null check (layer in ('machine', 'human')),
    key text not null,
    value text not null,
    at integer not null,
    primary key (workspace, subject, layer, key)
) strict, without rowid;
insert into labels_of select 'default', subject, layer, key, value, at from labels;
drop table labels;
alter table labels_of rename to labels;

create table documents_of (
    workspace text not null,
    document text not null,
    title text,
    characters integer not null,
    body text not null,
    created_at integer not null,
    primary key (workspace, document)
) strict;
insert into documents_of select 'default', document, title, characters, body, created_at from documents;
drop table documents;
alter table documents_of rename to documents;

create table sources_of (
    workspace text not null,
    document text not null,
    source text not null,
    at integer not null,
    primary key (workspace, document, source)
) strict, without rowid;
insert into sources_of select 'default', document, source, at from document_sources;
drop table document_sources;
alter table sources_of rename to document_sources;

create table embeddings_of (
    workspace text not null,
    subject text not null,
    model text not null,
    vector text not null,
    at integer not null,
    primary key (workspace, subject, model)
) strict;
insert into embeddings_of select 'default', subject, model, vector, at from embeddings;
drop table embeddings;
alter table embeddings_of rename to embeddings;

-- Subjects whose text is to be triaged again when it is taken in the next time.
create table retriage (
    workspace text not null,
    subject text not null,
    at integer not null,
    primary key (workspace, subject)
) strict, without rowid;
