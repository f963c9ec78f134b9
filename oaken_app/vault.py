"""Where tokens are kept: in the system's keyring, or where that does not work in a file that only its owner reads.

A keyring may be missing, locked, drop what is written or never answer; so what is written is read back, and nothing waits for long.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from oaken_jobs.config import APP_NAME

SERVICE = APP_NAME
PATIENCE_SECONDS = 3.0
"""How long a keyring may take. One that asks its user takes longer, and is not waited for."""

T = TypeVar("T")


class Kept(NamedTuple):
    """Where a token is now, for people, and why it is not in the keyring; None where it is."""

    place: str
    why: str | None


class KeyringSilent(Exception):
    """The keyring has not answered in time."""


class Vault:
    """A place for one token: `name` is its user name in the keyring, `file` where it is kept otherwise."""

    def __init__(self, name: str, file: Path) -> None:
        self._name = name
        self._file = file

    def keep(self, token: str) -> Kept:
        """Keeps a token in place of what was there. Raises `OSError` where it can be kept nowhere."""
        why = self._into_keyring(token)
        if why is None:
            self._file.unlink(missing_ok=True)
            return Kept("the system's keyring", None)
        write_private(self._file, token + "\n")
        return Kept(str(self._file), why)

    def find(self) -> str | None:
        """The token that is kept; None where there is none."""
        # The file is only there where the keyring did not work, and need not be asked then.
        try:
            return self._file.read_text("ascii").strip() or None
        except (OSError, UnicodeDecodeError):
            pass
        try:
            return _soon(lambda: _backend().get_password(SERVICE, self._name))
        except Exception:
            return None

    def forget(self) -> bool:
        """Removes the token. Whether there was one."""
        found = self.find() is not None
        self._file.unlink(missing_ok=True)
        try:
            _soon(lambda: _backend().delete_password(SERVICE, self._name))
        except Exception:
            pass  # it was not there, or there is no keyring
        return found

    def _into_keyring(self, token: str) -> str | None:
        """Why the token is not in the keyring; None where it is."""

        def write() -> str | None:
            backend = _backend()
            backend.set_password(SERVICE, self._name, token)
            return backend.get_password(SERVICE, self._name)

        try:
            found = _soon(write)
        except KeyringSilent:
            return f"the system's keyring has not answered within {PATIENCE_SECONDS:g} s"
        except Exception as error:  # backends raise whatever they like, and say in it what they like
            return f"the system's keyring does not work ({type(error).__name__})"
        if found is None or not hmac.compare_digest(found.encode(), token.encode()):
            return "the system's keyring does not keep what is written"
        return None


def of_folder(folder: Path) -> Vault:
    """Where the admin token of a data folder is."""
    return Vault(str(folder.resolve()), folder / "admin-token")


def of_server(url: str) -> Vault:
    """Where the token for a server is, by its `base_url`."""
    from platformdirs import user_config_dir

    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", url)[:60]
    name = f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    return Vault(url, Path(user_config_dir(APP_NAME, appauthor=False)) / "tokens" / name)


def _backend() -> Any:
    """The system's keyring. Imported here, where it may hang, and only in processes that need it."""
    import keyring

    return keyring.get_keyring()


def _soon(act: Callable[[], T]) -> T:
    """What `act` returns or raises. Raises `KeyringSilent` where that takes too long; its thread ends with the process."""
    done: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(act())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="keyring", daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    if failed:
        raise failed[0]
    if not done:
        raise KeyringSilent
    return done[0]


def write_private(file: Path, text: str) -> None:
    """Writes a file so that it is whole, and only its owner can read it, from the first moment."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}")  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="ascii") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
