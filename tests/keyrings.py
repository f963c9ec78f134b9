"""Keyrings that work, and that do not, each in its own way. A process takes one by `PYTHON_KEYRING_BACKEND=tests.keyrings.NAME`."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class InFile(KeyringBackend):
    """Keeps what it is told in the file that `TEST_KEYRING` names."""

    priority = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def _all(self) -> dict[str, str]:
        file = Path(os.environ["TEST_KEYRING"])
        return json.loads(file.read_text()) if file.exists() else {}

    def _keep(self, kept: dict[str, str]) -> None:
        Path(os.environ["TEST_KEYRING"]).write_text(json.dumps(kept))

    def get_password(self, service: str, username: str) -> str | None:
        return self._all().get(f"{service} {username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._keep({**self._all(), f"{service} {username}": password})

    def delete_password(self, service: str, username: str) -> None:
        kept = self._all()
        if kept.pop(f"{service} {username}", None) is None:
            raise PasswordDeleteError("not there")
        self._keep(kept)


class Locked(InFile):
    """Its owner is not there to open it."""

    def _all(self) -> dict[str, str]:
        raise KeyringLocked("the keyring is locked")


class Dropping(InFile):
    """Says that it has written, and has not."""

    def set_password(self, service: str, username: str, password: str) -> None:
        pass


class Mangling(InFile):
    """Gives back something else than it was told."""

    def get_password(self, service: str, username: str) -> str | None:
        found = super().get_password(service, username)
        return None if found is None else found[:-1]


class Hanging(InFile):
    """Never answers."""

    def get_password(self, service: str, username: str) -> str | None:
        threading.Event().wait()
        return None

    def set_password(self, service: str, username: str, password: str) -> None:
        threading.Event().wait()


class Broken(InFile):
    """Raises what no keyring should, with the secret in it."""

    def set_password(self, service: str, username: str, password: str) -> None:
        raise RuntimeError(f"cannot write {password}")


class Marking(InFile):
    """Leaves a file behind as soon as there is one of it."""

    def __init__(self) -> None:
        super().__init__()
        Path(os.environ["TEST_KEYRING"] + ".touched").touch()
