-- An attempt is written when it ends; one that goes on is in the row of its job. Whether a late result came is told by `late_results`.
delete from attempts where ended_at is null;
alter table attempts drop column late_at;
