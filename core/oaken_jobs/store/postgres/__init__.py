"""PostgreSQL: one database for any number of Oaken processes on any number of machines."""

from oaken_jobs.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
