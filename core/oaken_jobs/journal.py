"""A file of lines that several processes append to and that is rotated by size: `name`, before it `name.1`, before that `name.2` ...

Whoever writes holds a lock; readers need none. A process killed at any moment leaves at most the beginning of a line at the end of the
newest file. Readers pass over it, and the next writer cuts it off. All calls block: on an event loop use `asyncio.to_thread`.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from oaken_jobs.views import iso

LOCK_SECONDS = 10.0
"""How long `lock` waits: other processes hold it for milliseconds."""
_POLL_SECONDS = 0.005
_BLOCK = 1 << 16
MAX_LINE = 128 << 20
"""Bytes of a line that is read; a longer one is none of ours and is passed over."""
_PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_SAFE = _PLAIN | getattr(os, "O_NOFOLLOW", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""So that a pipe, which is refused, does not keep whoever opens it waiting."""


class Journal:
    """Lines end with a newline and hold none besides. The files, and the lock beside them, are the owner's alone. What stands in
    their place and is no regular file, a pipe for instance, is neither read nor written: that is an `OSError`.

    A file grows to `max_bytes`; one line that is longer gets a file of its own. `backups` older files are kept.
    """

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._lock = FileLock(
            path.with_name(f"{path.name}.lock"), mode=0o600, poll_interval=_POLL_SECONDS, preserve_lock_file=True
        )

    @contextmanager
    def lock(self) -> Generator[None]:
        """Keeps other writers out, of this process's other threads too. Raises `TimeoutError` after `LOCK_SECONDS`, `OSError`."""
        with self._lock.acquire(timeout=LOCK_SECONDS):
            yield

    @contextmanager
    def try_lock(self) -> Generator[bool]:
        """`lock`, where it can be had at once: whether it was."""
        with ExitStack() as held:
            try:
                held.enter_context(self._lock.acquire(timeout=0))
            except Timeout:
                yield False
                return
            yield True

    def append(self, lines: bytes) -> None:
        """Adds whole lines, under the lock. Raises `OSError`, when those before the one that failed may have been written."""
        start = 0
        while start < len(lines):
            with _open_to_append(self.path) as file:
                size = _end(file)
                file.truncate(size)  # what a process that was killed did not finish
                end = self._fitting(lines, start, size)
                if end > start:
                    _write(file, memoryview(lines)[start:end])
                    start = end
                    continue
            self._rotate()

    def last_line(self) -> bytes | None:
        """The newest line; None where there is none."""
        return next(self.backwards(), None)

    def tail(self, count: int) -> list[bytes]:
        """The newest lines, at most `count`, oldest first."""
        return list(itertools.islice(self.backwards(), count))[::-1]

    def backwards(self) -> Iterator[bytes]:
        """All lines, newest first."""
        with self.snapshot() as files:
            for file in files.newest_first:
                for _, line in _backwards(file):
                    yield line

    def lines(self) -> Iterator[bytes]:
        """All lines, oldest first."""
        with self.snapshot() as files:
            for file in reversed(files.newest_first):
                for _, line in _forwards(file):
                    yield line

    def snapshot(self) -> _Files:
        """The files there are, opened."""
        return _Files(self._names())

    def forget(self, before_ms: int) -> None:
        """Drops lines up to the first whose `ts`, an ISO time, is not before that moment. Takes the lock. Raises `OSError`."""
        before = iso(before_ms) or ""
        spare = self.path.with_name(f"{self.path.name}.tmp")
        if not any(os.path.lexists(name) for name in (*self._names(), spare)):
            return  # nor is a lock left where nothing was ever written
        with self.lock():
            spare.unlink(missing_ok=True)
            for name in reversed(self._names()):
                kept = _first_since(name, before)
                if kept is None:
                    name.unlink(missing_ok=True)
                    continue
                if kept > 0:
                    if name == self.path:
                        # A file that is written to is never replaced: whoever follows it knows its end. The older ones are gone.
                        name = _numbered(self.path, 1)
                        self.path.replace(name)
                    _copy(name, spare, kept)
                    spare.replace(name)
                return

    def _fitting(self, lines: bytes, start: int, size: int) -> int:
        """Where to stop writing to a file of this size: behind the last line that it has room for."""
        limit = start + self._max_bytes - size
        if limit >= len(lines):
            return len(lines)
        end = lines.rfind(b"\n", start, max(start, limit)) + 1
        if end == 0:
            return start if size else lines.index(b"\n", start) + 1
        return end

    def _rotate(self) -> None:
        """Every file moves up, as far as the first free place: one that a killed process left free is not paid for with the oldest
        file."""
        if not self._backups:
            for name in self._names():
                name.unlink(missing_ok=True)
            return
        free = next((n for n in range(1, self._backups) if not _numbered(self.path, n).exists()), self._backups)
        for number in range(free, 1, -1):
            _numbered(self.path, number - 1).replace(_numbered(self.path, number))
        self.path.replace(_numbered(self.path, 1))

    def _names(self) -> list[Path]:
        """Where files may be, newest first. Of a file of which `forget` dropped a part there is one backup, even if none are kept."""
        return [self.path, *(_numbered(self.path, n) for n in range(1, max(1, self._backups) + 1))]


class Follow:
    """Goes along with a journal: from its end, or from `back` lines before. Loses and repeats nothing across rotations, as long as the
    files that were added since the last `read` are kept. Lines must differ from each other."""

    def __init__(self, journal: Journal, back: int = 0) -> None:
        self._journal = journal
        self._file: FileIO | None = None
        self._offset = 0
        with journal.snapshot() as files:
            found = next(((file, _end(file)) for file in files.newest_first), None)
            for file, offset in itertools.islice(_places(files.newest_first), back):
                found = file, offset
            if found is not None:
                self._file, self._offset = files.keep(found[0]), found[1]

    def read(self, limit: int) -> list[bytes]:
        """What was added since the last call, at most `limit` lines; empty when there is nothing new."""
        found: list[bytes] = []
        while len(found) < limit:
            rotated = self._file is None or not _is(
                self._journal.path, self._file
            )  # before reading: then it grows no more
            if self._file is not None:
                for end, line in itertools.islice(_forwards(self._file, self._offset), limit - len(found)):
                    found.append(line)
                    self._offset = end
            if len(found) < limit and not (rotated and self._advance()):
                break
        return found

    def close(self) -> None:
        """Closes the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _advance(self) -> bool:
        """On to the file after this one, if there is one."""
        with self._journal.snapshot() as files:
            newer = files.after(self._file)
            if newer is None:
                return False
            self.close()
            self._file, self._offset = files.keep(newer), 0
            return True


class _Files:
    """The files of a journal, opened at one moment. Opened newest first, as they move from there to the older names, so that a rotation
    meanwhile shows a file twice at most, and hides none."""

    def __init__(self, names: list[Path]) -> None:
        self.newest_first: list[FileIO] = []
        self._kept: FileIO | None = None
        with ExitStack() as opened:
            for name in names:
                try:
                    file = opened.enter_context(_open_to_read(name))
                except FileNotFoundError:
                    continue
                if not any(_same(file, other) for other in self.newest_first):
                    self.newest_first.append(file)
            opened.pop_all()

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.newest_first:
            if file is not self._kept:
                file.close()

    def keep(self, file: FileIO) -> FileIO:
        """The file, not closed with the others."""
        self._kept = file
        return file

    def after(self, file: FileIO | None) -> FileIO | None:
        """The file after this one. One that is gone has been replaced by another with its last line, or was before the oldest."""
        if not self.newest_first:
            return None
        place = len(self.newest_first)
        if file is not None:
            last = _last(file)
            places = enumerate(self.newest_first)
            place = next((n for n, other in places if _same(file, other) or _last(other) == last), place)
        return self.newest_first[place - 1] if place else None


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _open_to_read(path: Path) -> FileIO:
    def at_once(name: str, _: int) -> int:
        return os.open(name, os.O_RDONLY | _PLAIN | _AT_ONCE)

    return _regular(FileIO(path, opener=at_once))


def _open_to_append(path: Path) -> FileIO:
    def private(name: str, _: int) -> int:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | _SAFE | _AT_ONCE, 0o600)

    file = _regular(FileIO(path, "r+", opener=private))
    if os.fstat(file.fileno()).st_mode & 0o077 and os.name == "posix":
        os.fchmod(file.fileno(), 0o600)
    return file


def _regular(file: FileIO) -> FileIO:
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        name = file.name
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", name)
    return file


def _write(file: FileIO, lines: memoryview) -> None:
    while lines:
        lines = lines[file.write(lines) :]


def _copy(source: Path, target: Path, offset: int) -> None:
    """All of a file from an offset on, into a new one."""

    def private(name: str, _: int) -> int:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)

    with source.open("rb") as read, open(target, "wb", opener=private) as written:
        read.seek(offset)
        shutil.copyfileobj(read, written, _BLOCK)


def _first_since(name: Path, before: str) -> int | None:
    """Where the first line begins that is to be kept; None where there is none."""
    try:
        file = _open_to_read(name)
    except FileNotFoundError:
        return None
    with file:
        for end, line in _forwards(file):
            if _ts(line) >= before:
                return end - len(line) - 1
    return None


def _ts(line: bytes) -> str:
    """Of a line that cannot be read: older than all."""
    try:
        return str(orjson.loads(line)["ts"])
    except (ValueError, TypeError, KeyError):
        return ""


def _forwards(file: FileIO, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """The whole lines there are now, from an offset on, and where each ends. What is behind the last of them may change while it is
    read."""
    end, step = _end(file), _BLOCK
    while offset < end:
        file.seek(offset)
        data = file.read(min(step, end - offset))
        if not data:
            return  # somebody else has emptied the file
        cut = data.rfind(b"\n") + 1
        if cut == 0 and len(data) > MAX_LINE:
            offset, step = _line_end(file, offset + len(data)), _BLOCK
            continue
        if cut == 0:
            step *= 2
            continue
        for line in data[: cut - 1].split(b"\n"):
            offset += len(line) + 1
            yield offset, line
        step = _BLOCK


def _line_end(file: FileIO, offset: int) -> int:
    """Where the line ends that an offset is in."""
    file.seek(offset)
    while data := file.read(_BLOCK):
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        offset += len(data)
    return offset


def _end(file: FileIO) -> int:
    """Where the last whole line ends: mostly at the end of the file, so one byte is looked at first."""
    place, step = file.seek(0, os.SEEK_END), 1
    while place > 0:
        step = min(step, place)
        place -= step
        file.seek(place)
        found = file.read(step).rfind(b"\n")
        if found >= 0:
            return place + found + 1
        step = _BLOCK
    return 0


def _backwards(file: FileIO) -> Iterator[tuple[int, bytes]]:
    """The whole lines, newest first, and where each begins."""
    place, rest, step = _end(file), b"", _BLOCK
    while place > 0:
        taken = min(step, place)
        place -= taken
        file.seek(place)
        data = file.read(taken) + rest
        begin = 0 if place == 0 else data.find(b"\n") + 1
        if begin == len(data):
            if len(data) > MAX_LINE:
                place, rest, step = _line_begin(file, place), b"", _BLOCK
                continue
            rest = data
            step *= 2  # within a long line: what was read is not to be copied once a block
            continue
        offset, step = place + len(data), _BLOCK
        for line in reversed(data[begin:-1].split(b"\n")):
            offset -= len(line) + 1
            yield offset, line
        rest = data[:begin]


def _line_begin(file: FileIO, offset: int) -> int:
    """Where the line begins that an offset is in."""
    while offset > 0:
        taken = min(_BLOCK, offset)
        file.seek(offset - taken)
        found = file.read(taken).rfind(b"\n")
        if found >= 0:
            return offset - taken + found + 1
        offset -= taken
    return 0


def _places(newest_first: list[FileIO]) -> Iterator[tuple[FileIO, int]]:
    """Where each line begins, newest first."""
    for file in newest_first:
        for offset, _ in _backwards(file):
            yield file, offset


def _last(file: FileIO) -> bytes | None:
    return next((line for _, line in _backwards(file)), None)


def _same(one: FileIO, other: FileIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _is(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
