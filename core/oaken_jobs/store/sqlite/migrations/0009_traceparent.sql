-- Of the W3C, as its enqueue came with; children and jobs that a finish adds have their parent's.
alter table jobs add column traceparent text;
