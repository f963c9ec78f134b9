"""What both engines do alike: the work of a transaction, and what is read, in SQL that each engine has in its own words where it must."""
