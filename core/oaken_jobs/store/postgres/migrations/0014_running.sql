-- Who looks for the first lease that ends goes by time alone. Where few rows run the planner thought these as good for it, whose condition was
-- the same, and they hold the dead rows of all that ever ran since the last vacuum.
drop index jobs_running_kind;
create index jobs_running_kind on jobs (kind, lease_expires) where state = 'running' and kind is not null;
drop index jobs_holder;
create index jobs_holder on jobs (holder) where state = 'running' and holder is not null;
