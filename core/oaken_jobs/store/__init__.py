"""The one seam to a database: `base` says what a store is asked for and what it answers. Each engine is a package beside it."""
