"""The core of a process, put together: the store and all that needs it; opened in order, closed in reverse."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from oaken_jobs.activity import Follower
from oaken_jobs.audit import Audits
from oaken_jobs.auth import Tokens
from oaken_jobs.clock import Clock, DatabaseClock, SystemClock
from oaken_jobs.commit import Committer
from oaken_jobs.config import DatabaseSettings, LogSettings
from oaken_jobs.dispatch import Dispatcher
from oaken_jobs.errors import ConfigError
from oaken_jobs.events.bus import Bus
from oaken_jobs.events.event import TraceRow
from oaken_jobs.events.log import EventLog
from oaken_jobs.files import DATABASE
from oaken_jobs.jobs import Jobs
from oaken_jobs.journal import Journal
from oaken_jobs.kinds import Rules
from oaken_jobs.logs import LogKeeper, Logs
from oaken_jobs.maintenance import Maintenance
from oaken_jobs.pruning import Pruner
from oaken_jobs.repeats import Repeats
from oaken_jobs.scheduler import Scheduler
from oaken_jobs.schedules import Schedules
from oaken_jobs.sessions import Sessions
from oaken_jobs.stopping import Step, every
from oaken_jobs.store.base import Store
from oaken_jobs.store.operations import Op
from oaken_jobs.store.sqlite import SqliteStore
from oaken_jobs.tasks import Tasks
from oaken_jobs.traces import Traces
from oaken_jobs.tracing import Trace


def calm_collector() -> None:
    """Lets the garbage collector look less often: rows and tuples come and go by the thousand and hold no cycles.

    For processes that serve; 3 to 8 % of a busy store's throughput. Once, when all is imported.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def clock_for(database: DatabaseSettings) -> Clock:
    """The clock of a process that keeps its jobs there."""
    return SystemClock() if database.url is None else DatabaseClock()


def not_installed(error: ImportError) -> ConfigError:
    """What to say where PostgreSQL is named, and what that takes is not there."""
    return ConfigError(
        f"database.url names PostgreSQL, and the package {error.name} is missing. Install what it takes: "
        "pip install 'oaken-swarm[postgres]'."
    )


def _on_postgres(url: str, settings: DatabaseSettings, rules: Rules, clock: Clock) -> Store:
    try:
        from oaken_jobs.store.postgres import PostgresStore
    except ImportError as error:
        raise not_installed(error) from None
    return PostgresStore(url, rules, clock, pool_size=settings.pool_size, listen=settings.listen)


class Core:
    """Everything that needs the database. `role` names the process to others: `serve`, `runner`, `mcp`, `cli`."""

    def __init__(
        self, store: Store, clock: Clock, role: str, data_dir: Path, log: LogSettings, trace: Trace | None = None
    ) -> None:
        self.clock = clock
        self.store = store
        self.commit = Committer(store)
        self.follower = Follower(store)
        self.dispatch = Dispatcher(self.commit, clock)
        recorded = trace if trace is not None and trace.recording else None
        self.jobs = Jobs(store, self.commit, self.dispatch, self.follower, clock, recorded)
        self.tasks = Tasks(store, self.commit, clock)
        self.tokens = Tokens(store, self.commit, clock)
        self.sessions = Sessions(store, self.commit, self.tokens, clock)
        self.audits = Audits(store, self.commit)
        self.traces = Traces(trace, self.audits)
        self.repeats = Repeats(self.commit)
        self.schedules = Schedules(store, self.commit)
        self.scheduler = Scheduler(store, self.commit, clock)
        self.pruner = Pruner(store, self.commit, clock, trace)
        self.maintenance = Maintenance(store, self.commit, self.jobs, self.tokens, clock, role)
        self.bus = Bus(store, self.follower)
        self.event_log: EventLog | None = None
        if log.events_file:
            journal = Journal(data_dir / log.events_file, log.file_max_bytes, log.file_backups)
            self.event_log = EventLog(store, clock, journal, store.rules.event_ring_size)
        journal = Journal(data_dir / log.file, log.file_max_bytes, log.file_backups) if log.file else None
        self.log_keeper = LogKeeper(self.commit, clock, self.bus, role, journal)
        self.logs = Logs(store, log.file)
        self._trace = trace
        if trace is not None:
            trace.told = lambda row: self.bus.tell(TraceRow(row))
        self.opened = False
        """Whether the database has been opened; a process whose start failed closes it all the same."""
        self.dispatch.interest = self.follower.watch
        self.follower.foreign = self._foreign
        self.tokens.look = self.follower.look
        self.commit.committed = self._committed

    @classmethod
    def on_folder(
        cls,
        data_dir: Path,
        rules: Rules,
        role: str,
        clock: Clock | None = None,
        *,
        database: DatabaseSettings | None = None,
        log: LogSettings | None = None,
        trace: Trace | None = None,
    ) -> Core:
        """The core on the data folder's own database, or on PostgreSQL where `database` names one; what else there is stays in the
        folder. Raises `ConfigError` where that cannot be."""
        database = database or DatabaseSettings()
        used = clock or clock_for(database)
        if database.url is not None:
            store = _on_postgres(database.url, database, rules, used)
        else:
            store = SqliteStore(data_dir / DATABASE, rules, used)
        return cls(store, used, role, data_dir, log or LogSettings(), trace)

    def _committed(self, ops: Sequence[Op]) -> None:
        """This process has committed."""
        self.tokens.committed(ops)
        self.follower.own_commit(ops)

    def _foreign(self) -> None:
        """Another process has committed."""
        self.tokens.forget()
        self.dispatch.wake()

    async def open(self) -> None:
        """Opens the database. Duties begin with `start_duties`, which short-lived processes leave out."""
        await self.store.open()
        self.opened = True
        await self.follower.start()

    async def start_duties(self) -> None:
        """Begins what every long-lived process does, whichever it is."""
        await self.log_keeper.start()
        await self.bus.start()
        if self.event_log is not None:
            await self.event_log.start()
        await self.maintenance.start()
        await self.scheduler.start()
        await self.pruner.start()

    async def stop_duties(self) -> None:
        """Ends what changes jobs by itself, after what is in flight. What only tells of changes goes on until `close`. Raises `Unfinished`
        where something failed; all has ended then, too."""
        await every(
            ("the pruner", self.pruner.stop),
            ("the scheduler", self.scheduler.stop),
            ("the duties", self.maintenance.stop),
        )

    async def close(self) -> None:
        """Answers who waits, ends the duties, tells what is left to tell, commits what was taken, closes the database. Nothing is
        touched afterwards. Raises `Unfinished` where something failed; the database is closed all the same."""
        self.dispatch.close()
        steps: list[Step] = [("the duties", self.stop_duties), ("handlers of events", self.bus.stop)]
        if self.event_log is not None:
            steps.append(("the event log", self.event_log.stop))
        steps += [
            ("the follower", self.follower.stop),
            ("the log keeper", self.log_keeper.stop),
            ("the last writes", self.commit.close),
        ]
        if self._trace is not None:
            steps.append(("the trace", self._trace.stop))
        await every(*steps, ("the database", self.store.close))
