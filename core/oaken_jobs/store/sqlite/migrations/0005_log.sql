create table log_lines (
    id integer primary key autoincrement,
    at integer not null,
    level text not null,
    logger text not null,
    message text not null,
    process text not null
) strict;
create index log_lines_at on log_lines (at);
