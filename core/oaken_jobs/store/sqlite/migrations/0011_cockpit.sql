-- Browsers that are logged in: hashes of what each keeps, and of the token it was logged in with.
create table sessions (
    id integer primary key autoincrement,
    hash text not null unique,
    token text not null,
    token_hash text not null,
    created_at integer not null,
    seen_at integer not null,
    expires_at integer not null
) strict;
create table login_codes (
    hash text primary key,
    token text not null,
    token_hash text not null,
    expires_at integer not null
) strict, without rowid;

-- How many jobs ended in a minute and what attempts cost in it. Those who write side by side count in rows of their own.
create table finishes (
    minute integer not null,
    workspace text not null,
    state text not null,
    process text not null,
    jobs integer not null,
    cost_usd real not null,
    primary key (minute, workspace, state, process)
) strict, without rowid;
insert into finishes select finished_at / 60000, workspace, state, '', count(*), 0 from jobs where finished_at is not null group by 1, 2, 3;
insert into finishes select a.ended_at / 60000, j.workspace, 'spent', '', count(*), sum(a.cost_usd)
    from attempts a join jobs j on j.id = a.job_id where a.ended_at is not null and a.cost_usd is not null group by 1, 2;

create index jobs_ill on jobs (finished_at) where grade in ('warn', 'bad');

-- Where a process that serves can be reached.
alter table processes add column address text;
