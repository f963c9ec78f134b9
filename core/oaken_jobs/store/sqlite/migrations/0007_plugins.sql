create table plugin_health (
    plugin text primary key,
    healthy integer not null,
    reason text,
    at integer not null
) strict, without rowid;

-- JSON of what a plugin's own event says: numbers, switches and short identifiers.
alter table activity add column data text;
