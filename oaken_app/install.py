"""`oaken mcp install CLIENT`: puts Oaken into the list of MCP servers of an assistant or an editor."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from difflib import unified_diff
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

import typer

from oaken_app.show import line
from oaken_jobs import config
from oaken_jobs.errors import ConfigError, InvalidRequest
from oaken_swarm.connection import base_url

CLIENTS = ("claude-desktop", "claude-code", "cursor", "vscode")
NEW_MODE = 0o600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_INDENT = re.compile(r"^[ \t]+(?=\")", re.MULTILINE)


class Place(NamedTuple):
    """Where a client keeps its servers."""

    path: Path
    key: str
    """The member of the file that holds them."""
    says_type: bool
    """Whether an entry says that it is on stdio."""


def place_of(client: str, home: Path, environ: Mapping[str, str], platform: str) -> Place:
    """The file of a client, for the whole of a user's work, not one project's. `platform` as in `sys.platform`."""
    if client == "claude-code":
        return Place(home / ".claude.json", "mcpServers", True)
    if client == "cursor":
        return Place(home / ".cursor" / "mcp.json", "mcpServers", False)
    if platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif platform == "win32":
        settings = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        settings = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if client == "vscode":
        return Place(settings / "Code" / "User" / "mcp.json", "servers", True)
    if platform == "win32":
        # Installed from the store, Claude has a folder of its own in place of that one.
        packages = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "Packages"
        for package in sorted(packages.glob("Claude_*")):
            settings = package / "LocalCache" / "Roaming"
    return Place(settings / "Claude" / "claude_desktop_config.json", "mcpServers", False)


def entry_of(command: Path, where: Path | str, *, says_type: bool) -> dict[str, Any]:
    """What starts Oaken, on a data folder or for the server at an address. The paths are absolute, since a client starts it from anywhere
    and with few variables."""
    entry: dict[str, Any] = {"type": "stdio"} if says_type else {}
    option = "--url" if isinstance(where, str) else "--data-dir"
    return entry | {"command": str(command), "args": ["mcp", option, str(where)]}


class Change(NamedTuple):
    """A file as it is and as it will be, each written in the same way: only what differs is the change."""

    before: str
    after: str


def changed(text: str, place: Place, name: str, entry: Mapping[str, Any]) -> Change:
    """The file with the entry in it; all else stays. Raises `ConfigError` for one that cannot be read."""
    try:
        whole: Any = json.loads(text, object_pairs_hook=_once_each) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{place.path} is no plain JSON ({error}), perhaps because of comments. Put this into its {place.key!r} by hand: "
            f"{json.dumps({name: entry})}"
        ) from None
    try:
        before = _written(whole, text) if text.strip() else ""
        servers: Any = cast("dict[str, Any]", whole).setdefault(place.key, {}) if isinstance(whole, dict) else None
        if not isinstance(servers, dict):
            raise ConfigError(f"{place.path} holds no object with servers in {place.key!r}; it was not changed.")
        cast("dict[str, Any]", servers)[name] = dict(entry)
        return Change(before, _written(whole, text))
    except ValueError:
        raise ConfigError(
            f"{place.path} holds a number that is too large to be written again; it was not changed."
        ) from None


def _written(whole: Any, like: str) -> str:
    """A value as JSON with the indentation and the ends of lines of a text. Raises `ValueError` for what JSON has not."""
    found = _INDENT.search(like)
    # Halves of characters can only be written as escapes, as they were.
    escaped = _HALF.search(like) is not None
    text = json.dumps(whole, indent=found[0] if found else 2, ensure_ascii=escaped, allow_nan=False) + "\n"
    return text.replace("\n", "\r\n") if "\r\n" in like else text


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def install(
    client: str, data_dir: Path | None, url: str | None, *, name: str, config_file: Path | None, yes: bool
) -> None:
    """Shows the change, asks unless told `yes`, and makes it. Raises `InvalidRequest` for a client or a name that is none, `ConfigError`
    for a file that cannot be changed."""
    if client not in CLIENTS:
        raise InvalidRequest(f"{client[:80]!r} is no client that is known here; known are {', '.join(CLIENTS)}.")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"--name {name[:80]!r}: give up to 64 letters, digits, _ and -, beginning with a letter or digit."
        )
    place = place_of(client, Path.home(), os.environ, sys.platform)
    if config_file is not None:
        place = place._replace(path=config_file.absolute())
    where = config.load(data_dir).data_dir.absolute() if url is None else base_url(url)
    entry = entry_of(_command(), where, says_type=place.says_type)
    try:
        text = _read(place.path)
        before, after = changed(text, place, name, entry)
        if after == before:
            line(f"{place.path} has it already.")
            return
        # Nothing of what stands beside it, which may be somebody's token.
        for each in unified_diff(
            before.splitlines(), after.splitlines(), str(place.path), "as it will be", lineterm="", n=0
        ):
            line(each)
        if not yes and not typer.confirm("Write it?", default=True, err=True):
            line("Nothing was changed.")
            return
        if _read(place.path) != text:
            raise ConfigError(f"{place.path} was changed meanwhile, by its client perhaps. Run the command again.")
        kept = _write(place.path, after)
    except typer.Abort:
        raise InvalidRequest(
            "Nothing was changed, for nobody has answered. Give --yes to have it written unasked."
        ) from None
    except (OSError, RuntimeError, UnicodeError) as error:
        raise ConfigError(f"{place.path} cannot be changed: {error}.") from None
    if kept is not None:
        line(f"As it was: {kept}")
    line(f"Done. Start {client} again, and ask it for its Oaken tools.")


def _command() -> Path:
    """The command `oaken` that runs now."""
    beside = Path(sys.executable).parent / ("oaken.exe" if sys.platform == "win32" else "oaken")
    return beside if beside.exists() else Path(sys.argv[0]).absolute()


def _read(path: Path) -> str:
    """What is in the file, without a byte order mark; nothing where there is none."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file.")
    if not path.exists():
        return ""
    if not path.stat().st_mode & 0o222:
        raise ConfigError(
            f"{path} is read-only, so it was not changed. Make it writable, or put Oaken into it by hand."
        )
    return path.read_bytes().decode("utf-8-sig")  # the ends of lines as they are


def _write(path: Path, text: str) -> Path | None:
    """Replaces the file in one step, and says where the one before is kept."""
    path = path.resolve()  # of a link the file, not the link
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = None
    if path.exists():
        # Earlier ones stay: the first is from before Oaken ever wrote here.
        numbered = (path.with_name(f"{path.name}.before-oaken-{number}") for number in count(1))
        kept = next(name for name in numbered if not name.exists())
        shutil.copy2(path, kept)
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, path.stat().st_mode & 0o777 if kept is not None else NEW_MODE)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    return kept
