-- Only on PostgreSQL there is something to change.
select 1;
