"""Settings: defaults, `config.toml`, the environment, and what the caller says; the later wins.

Every key has one name, `[section] key`, and as a variable `OAKEN_SECTION__KEY`; a queue's or a kind's is
`OAKEN_QUEUES__NAME__KEY`, with the name in lower case. Lists and tables are JSON in a variable. Whatever is wrong is a
`ConfigError` that names the file or the variable, the key, the value and what is allowed; an unknown key is wrong, too.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, cast, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oaken_jobs import files
from oaken_jobs.errors import BadJson, ConfigError
from oaken_jobs.jsontext import dump, parse
from oaken_jobs.redaction import clean

if TYPE_CHECKING:
    from oaken_jobs.kinds import Kind, Rules
    from oaken_jobs.routing import QueueRule

APP_NAME: Final = "oaken-swarm"
QUEUE_NAME: Final = r"[a-z][a-z0-9_-]{0,40}"

_PREFIX = "OAKEN_"
_PLAIN = ("OAKEN_URL", "OAKEN_TOKEN", "OAKEN_DATA_DIR", "OAKEN_DATABASE_URL", "OAKEN_CONFIG")
_DAY = 86_400
_MAX_BYTES = 100 * (1 << 20)


def _whole(default: int | None, low: int, high: int) -> Any:
    return Field(default, ge=low, le=high, description=f"a whole number from {low} to {high}")


def _number(default: float | None, low: float, high: float) -> Any:
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=f"a number from {low:g} to {high:g}")


def _switch(default: bool) -> Any:
    return Field(default, description="true or false")


def _choice(default: str | None, *words: str) -> Any:
    return Field(default, description=" or ".join(f'"{word}"' for word in words))


def _text(default: str | None, most: int, least: int = 1) -> Any:
    return Field(default, min_length=least, max_length=most, description=f"a text of {least} to {most} characters")


def _texts() -> Any:
    return Field(default_factory=list[str], max_length=1000, description="a list of texts")


def _schema() -> Any:
    return Field(None, description="a table that is a JSON Schema")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServerSettings(_Section):
    """`[server]`: where it listens, by TLS or behind what, and which Host and Origin headers it takes besides its own."""

    host: str = _text("127.0.0.1", 253)
    port: int = _whole(8787, 0, 65_535)
    """0 takes a free one."""
    allowed_hosts: list[str] = _texts()
    allowed_origins: list[str] = _texts()
    behind_proxy: bool = _switch(False)
    """Whether a proxy stands before it, which says in X-Forwarded-For where calls come from."""
    tls_cert: str | None = _text(None, 4096)
    """A file with the certificate and what it is signed by; relative to the data folder."""
    tls_key: str | None = _text(None, 4096)
    """A file with its key, where it is not in the same one."""


class JobsSettings(_Section):
    """`[jobs]`: what holds for every kind that does not say otherwise. Seconds, bytes."""

    lease_seconds: float = _number(60, 1, _DAY)
    max_attempts: int = _whole(5, 1, 10_000)
    backoff_base: float = _number(5, 0, _DAY)
    backoff_max: float = _number(3600, 0, 30 * _DAY)
    backoff_jitter: float = _number(0.2, 0, 1)
    recovery_grace: float = _number(20, 0, 3600)
    cancel_grace: float = _number(300, 0, 30 * _DAY)
    ask_timeout: float = _number(7 * _DAY, 1, 365 * _DAY)
    keep_days: float = _number(30, 0.01, 36_500)
    """How long a job that has ended is kept, with all that belongs to it."""
    kind_limits: dict[str, Annotated[int, Field(ge=1, le=100_000)]] = Field(
        default_factory=dict[str, int], description="a table of kinds, each with a whole number from 1 to 100000"
    )
    unknown_kinds: Literal["accept", "reject"] = _choice("accept", "accept", "reject")
    max_payload_bytes: int = _whole(1 << 20, 2, _MAX_BYTES)
    max_result_bytes: int = _whole(1 << 20, 2, _MAX_BYTES)
    max_batch: int = _whole(1000, 1, 100_000)


class QueueSettings(_Section):
    """`[queues.NAME]`: whose stage it is, and how many workers a runner gives it."""

    kind: str | None = _text(None, 200)
    workers: int = _whole(1, 0, 1000)
    by_label: bool = _switch(True)
    hidden: bool = _switch(False)


class KindSettings(_Section):
    """`[kinds.NAME]`: what is known of a kind. Keys left out are as `[jobs]`, or the built-in kind, says. Seconds."""

    payload_schema: dict[str, Any] | None = _schema()
    result_schema: dict[str, Any] | None = _schema()
    instructions: str | None = _text(None, 20_000)
    limit: int | None = _whole(None, 1, 100_000)
    lease_seconds: float | None = _number(None, 1, _DAY)
    max_attempts: int | None = _whole(None, 1, 10_000)
    retry_delays: list[Annotated[float, Field(ge=0, le=365 * _DAY)]] = Field(
        default_factory=list[float], max_length=100, description="a list of up to 100 numbers of seconds"
    )
    on_lost: Literal["requeue", "fail"] = _choice("requeue", "requeue", "fail")
    invalid_result: Literal["correct", "fail"] = _choice("correct", "correct", "fail")
    expected_wait: float | None = _number(None, 0, 365 * _DAY)
    requires_output: bool = _switch(False)


class RunnerSettings(_Section):
    """`[runner]`. Seconds."""

    grace: float = _number(30, 0, 3600)
    """How long jobs may go on after a stop was asked for."""


class SchedulerSettings(_Section):
    """`[scheduler]`. Seconds."""

    catch_up_spread: float = _number(60, 0, 3600)
    """Over how long the runs of many late schedules are spread after a start."""


class ApiSettings(_Section):
    """`[api]`."""

    event_ring_size: int = _whole(1000, 0, 10_000_000)
    """How many of the newest changes can always be played back."""
    stream_buffer: int = _whole(256, 1, 100_000)
    """How many events wait for a slow reader before the oldest are dropped."""


class DatabaseSettings(_Section):
    """`[database]`: PostgreSQL in the place of the data folder's own database."""

    url: str | None = _text(None, 4096)
    """`postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, also from `OAKEN_DATABASE_URL`. None: SQLite, in the data folder."""
    pool_size: int = _whole(8, 1, 1000)
    """The most connections of a process that read; up to two more write and listen."""
    listen: bool = _switch(True)
    """Whether connections are its own for as long as they live. Off behind a pooler in transaction mode, and for servers that know no
    LISTEN: other processes' commits are then looked for 20 times a second while somebody waits."""


class LogSettings(_Section):
    """`[log]`: log lines and the event log. Days, bytes."""

    level: Literal["debug", "info", "warning", "error"] = _choice("info", "debug", "info", "warning", "error")
    file: str | None = _text(None, 4096)
    """Where log lines go instead of the database, as JSON; relative to the data folder."""
    keep_days: float = _number(7, 0.01, 36_500)
    """How long log lines are kept in the database."""
    events_file: str = _text("events.jsonl", 4096, least=0)
    """Where every public event goes, relative to the data folder; empty for nowhere."""
    file_max_bytes: int = _whole(10 << 20, 1 << 10, 1 << 40)
    """How large a file of log lines or events becomes before it is rotated."""
    file_backups: int = _whole(5, 0, 1000)
    """How many rotated files are kept."""
    audit_keep_days: float = _number(365, 1, 36_500)
    """How long it is kept who read the trace."""


class TraceSettings(_Section):
    """`[trace]`: whether all that models and agents are told and answer is recorded, and for how long. Bytes are of one file; on PostgreSQL
    the table holds what all files would."""

    enabled: bool = _switch(False)
    keep_days: float = _number(30, 0.01, 36_500)
    max_bytes: int = _whole(100 << 20, 1024, 1 << 40)


class OidcSettings(_Section):
    """`[auth.oidc]`: an issuer whose tokens are taken besides those made here."""

    issuer: str | None = _text(None, 2000)
    """As it writes itself, such as `https://id.example/realms/work`."""
    audience: str | None = _text(None, 2000)
    """What tokens that are meant for this server name."""
    roles_claim: str = _text("roles", 200)
    """The claim that lists roles, or holds them as words."""


ModuleName = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


class PluginsSettings(_Section):
    """`[plugins]`: modules to load besides what is installed, and what each plugin is told (`[plugins.settings.NAME]`)."""

    modules: list[ModuleName] = Field(
        default_factory=list[str], max_length=100, description='a list of names of modules, such as "package.module"'
    )
    settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict[str, dict[str, Any]], repr=False, description="a table of plugins, each with a table"
    )


class Settings(_Section):
    """All settings of a process, as they came out of `load`."""

    data_dir: Path
    file: Path | None = None
    """The `config.toml` that was read; None where there was none."""
    url: str | None = None
    """Of the server that the command line is a client of; None for the data folder itself."""
    token: str | None = Field(None, repr=False)
    server: ServerSettings = Field(default_factory=ServerSettings)
    jobs: JobsSettings = Field(default_factory=JobsSettings)
    queues: dict[str, QueueSettings] = Field(default_factory=dict[str, QueueSettings])
    kinds: dict[str, KindSettings] = Field(default_factory=dict[str, KindSettings])
    runner: RunnerSettings = Field(default_factory=RunnerSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    api: ApiSettings = Field(default_factory=ApiSettings)
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    log: LogSettings = Field(default_factory=LogSettings)
    plugins: PluginsSettings = Field(default_factory=PluginsSettings)
    trace: TraceSettings = Field(default_factory=TraceSettings)
    auth: dict[str, OidcSettings] = Field(default_factory=dict[str, OidcSettings])
    """By name; there is `oidc`."""
    origins: dict[str, str] = Field(default_factory=dict[str, str], repr=False)
    """Of each setting that is not a default, as `[section] key`: the file or variable that says so."""


_SECTIONS: dict[str, type[_Section]] = {
    "server": ServerSettings,
    "jobs": JobsSettings,
    "runner": RunnerSettings,
    "scheduler": SchedulerSettings,
    "api": ApiSettings,
    "database": DatabaseSettings,
    "log": LogSettings,
    "plugins": PluginsSettings,
    "trace": TraceSettings,
}
_NAMED: dict[str, type[_Section]] = {"queues": QueueSettings, "kinds": KindSettings, "auth": OidcSettings}

_Where = tuple[str, ...]


class _Given(NamedTuple):
    """A value and who says so."""

    value: Any
    origin: str


def load(
    data_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    **overrides: Mapping[str, Any],
) -> Settings:
    """The settings of this process. Reads one file at most, writes nothing.

    `overrides` are sections (`server={"port": 0}`), in which None means: not said. `data_dir` and `config` go before
    `OAKEN_DATA_DIR` and `OAKEN_CONFIG`; a file named by either must exist. `environ` is the process's own unless given.

    Raises `ConfigError`.
    """
    environ = os.environ if environ is None else environ
    _check_plain(environ)
    folder = _folder(data_dir, environ)
    named = config or (Path(environ["OAKEN_CONFIG"]) if environ.get("OAKEN_CONFIG") else None)
    file = (named or folder / files.CONFIG).expanduser().absolute()
    content = _read(file, required=named is not None)

    given: dict[_Where, _Given] = {}
    given.update(_from_tables(content or {}, str(file)))
    given.update(_from_environ(environ))
    if environ.get("OAKEN_DATABASE_URL"):
        given["database", "url"] = _Given(environ["OAKEN_DATABASE_URL"], "OAKEN_DATABASE_URL")
    said = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in overrides.items()
    }
    given.update(_from_tables(said, "the call"))

    tree: dict[str, Any] = {
        "data_dir": folder,
        "file": file if content is not None else None,
        "url": environ.get("OAKEN_URL") or None,
        "token": environ.get("OAKEN_TOKEN") or None,
        "origins": {_key(path): value.origin for path, value in given.items()},
    }
    for path, value in given.items():
        node = tree
        for step in path[:-1]:
            node = node.setdefault(step, {})
        if len(path) == 2 and path[0] in _NAMED:
            node.setdefault(path[1], {})  # named without a key
        else:
            node[path[-1]] = value.value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise _refusal(error, given) from None
    _check_files(settings, file, given)
    return settings


def _check_files(settings: Settings, config: Path, given: Mapping[_Where, _Given]) -> None:
    """Refuses logs that would be written into a file that is there for something else."""
    journals = {"events_file": settings.log.events_file, "file": settings.log.file}
    wrong = files.refused(settings.data_dir, config, {key: name for key, name in journals.items() if name})
    if wrong is not None:
        key, allowed = wrong
        said = given.get(("log", key), _Given(journals[key], "the default"))
        raise ConfigError(
            f"{said.origin}: [log] {key} is {_json(said.value)}; it must be {allowed}.", setting=f"[log] {key}"
        )


class Shown(NamedTuple):
    """A setting, its value, and who says so; None for a default."""

    key: str
    value: Any
    origin: str | None


def shown(settings: Settings) -> list[Shown]:
    """All settings for people, without secrets: of what plugins are told only that they are told something."""
    found: list[Shown] = []
    for section in _SECTIONS:
        for key, value in getattr(settings, section).model_dump().items():
            where = f"[{section}] {key}"
            if (section, key) == ("plugins", "settings"):
                value = dict.fromkeys(value, "…")
            if (section, key) == ("database", "url") and value is not None:
                value = without_password(str(value))
            found.append(Shown(where, value, settings.origins.get(where)))
    for section in _NAMED:
        for name, of_name in getattr(settings, section).items():
            for key in _NAMED[section].model_fields:
                if key in of_name.model_fields_set:
                    where = f"[{section}.{name}] {key}"
                    found.append(Shown(where, getattr(of_name, key), settings.origins.get(where)))
    return found


def without_password(url: str) -> str:
    """A database's URL for people."""
    parts = urlsplit(url)
    who, at, where = parts.netloc.rpartition("@")
    netloc = f"{who.partition(':')[0]}{at}{where}"
    return f"{parts.scheme}://{netloc}{parts.path}"


def rules(settings: Settings, builtin: Iterable[Kind] = ()) -> Rules:
    """What the settings decide about jobs, with the kinds and queues that are built in.

    A built-in kind that is also configured keeps what the configuration does not say. Raises `ConfigError` for a schema
    that cannot be used and for two queues that are the stage of one kind.
    """
    from oaken_jobs.kinds import Rules

    jobs = settings.jobs
    return Rules(
        kinds=_kinds(settings, builtin),
        queues=_queues(settings),
        kind_limits=dict(jobs.kind_limits),
        lease_seconds=jobs.lease_seconds,
        max_attempts=jobs.max_attempts,
        backoff_base=jobs.backoff_base,
        backoff_max=jobs.backoff_max,
        backoff_jitter=jobs.backoff_jitter,
        recovery_grace=jobs.recovery_grace,
        cancel_grace=jobs.cancel_grace,
        ask_timeout=jobs.ask_timeout,
        catch_up_spread=settings.scheduler.catch_up_spread,
        keep_days=jobs.keep_days,
        event_ring_size=settings.api.event_ring_size,
        stream_buffer=settings.api.stream_buffer,
        log_keep_days=settings.log.keep_days,
        audit_keep_days=settings.log.audit_keep_days,
        unknown_kinds=jobs.unknown_kinds,
        max_payload_bytes=jobs.max_payload_bytes,
        max_result_bytes=jobs.max_result_bytes,
        max_batch=jobs.max_batch,
    )


def _kinds(settings: Settings, builtin: Iterable[Kind]) -> dict[str, Kind]:
    from oaken_jobs.kinds import Kind

    kinds = {kind.name: kind for kind in builtin}
    for name, configured in settings.kinds.items():

        def where(key: str, setting: str = f"[kinds.{name}]") -> str:
            return f"{settings.origins.get(f'{setting} {key}', 'the settings')}: {setting} {key}"

        kinds[name] = configured_kind(kinds.get(name) or Kind(name), configured, where)
    return kinds


def configured_kind(kind: Kind, said: KindSettings, where: Callable[[str], str]) -> Kind:
    """The kind with all that is said of it; the rest stays. `where` names a key in errors.

    Raises `ConfigError` for a schema that cannot be used.
    """
    from oaken_jobs.kinds import Schema

    changes: dict[str, Any] = {key: getattr(said, key) for key in said.model_fields_set}
    for key in ("payload_schema", "result_schema"):
        if changes.get(key) is not None:
            dump(changes[key], what=f"schema in {where(key)}", error=ConfigError)  # TOML has dates, JSON has not
            changes[key] = Schema.compile(changes[key], where(key))
    if "retry_delays" in changes:
        changes["retry_delays"] = tuple(changes["retry_delays"])
    return replace(kind, **changes)


_STAGES = {"store": "store", "embed": "embed"}


def _queues(settings: Settings) -> dict[str, QueueRule]:
    from oaken_jobs.routing import DEFAULT_QUEUE, QueueRule

    queues = {DEFAULT_QUEUE: QueueRule(DEFAULT_QUEUE, workers=2)}
    queues.update((name, QueueRule(name, kind=kind, hidden=True)) for name, kind in _STAGES.items())
    for name, configured in settings.queues.items():
        said: dict[str, Any] = {key: getattr(configured, key) for key in configured.model_fields_set}
        queues[name] = replace(queues.get(name) or QueueRule(name), **said)

    stages: dict[str, str] = {}
    for queue in queues.values():
        key = f"[queues.{queue.name}] kind"
        where = f"{settings.origins.get(key, 'the settings')}: {key} is {json.dumps(queue.kind)}"
        if queue.name in _STAGES and queue.kind != _STAGES[queue.name]:
            raise ConfigError(f'{where}, but this queue is the stage of "{_STAGES[queue.name]}". Leave the key out.')
        if queue.kind == "intake" and queue.name != DEFAULT_QUEUE:
            raise ConfigError(f'{where}, but "intake" always runs on {DEFAULT_QUEUE}. Leave the key out.')
        if queue.kind in stages:
            raise ConfigError(
                f'{where}, but that kind already has its stage in the queue "{stages[queue.kind]}". '
                "A kind has one stage: leave one of the two out."
            )
        if queue.kind is not None:
            stages[queue.kind] = queue.name
    return queues


def _folder(data_dir: Path | None, environ: Mapping[str, str]) -> Path:
    if data_dir is None and environ.get("OAKEN_DATA_DIR"):
        data_dir = Path(environ["OAKEN_DATA_DIR"])
    if data_dir is None:
        from platformdirs import user_data_dir

        data_dir = Path(user_data_dir(APP_NAME, appauthor=False))
    return data_dir.expanduser().absolute()


def _read(file: Path, *, required: bool) -> dict[str, Any] | None:
    """What the file says; None where there is none."""
    try:
        return tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{file}: there is no such file. OAKEN_CONFIG or the call names it.") from None
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 (byte {error.start}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: is not TOML: {error}.") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deep.") from None


def _from_tables(tables: Mapping[str, Any], origin: str) -> Iterator[tuple[_Where, _Given]]:
    for section, content in tables.items():
        _check_section(section, origin)
        for key, value in _table(content, f"[{section}]", origin).items():
            if section in _NAMED:
                _check_name(section, key, origin)
                for inner, said in _table(value, f"[{section}.{key}]", origin).items():
                    _check_key((section, key, inner), origin)
                    yield (section, key, inner), _Given(said, origin)
                if not value:
                    yield (section, key), _Given({}, origin)
            else:
                _check_key((section, key), origin)
                yield (section, key), _Given(value, origin)


def _from_environ(environ: Mapping[str, str]) -> Iterator[tuple[_Where, _Given]]:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or "__" not in variable:
            continue
        path = tuple(variable[len(_PREFIX) :].lower().split("__"))
        section = path[0]
        _check_section(section, variable)
        if len(path) != (3 if section in _NAMED else 2):
            shape = f"{section.upper()}__NAME__KEY" if section in _NAMED else f"{section.upper()}__KEY"
            raise ConfigError(f"{variable}: names no setting; one of [{section}] is {_PREFIX}{shape}.")
        if section in _NAMED:
            _check_name(section, path[1], variable)
        _check_key(path, variable)
        yield path, _Given(_value(path, text), variable)


def _value(path: _Where, text: str) -> Any:
    """What the text of a variable stands for: itself where the setting is a text, JSON otherwise."""
    annotation = _model(path[0]).model_fields[path[-1]].annotation
    if get_origin(annotation) is Literal:
        return text.strip().lower()
    if annotation is str or annotation == str | None:
        return text
    if annotation is bool:
        return _SWITCH.get(text.strip().lower(), text)
    try:
        return parse(text)
    except BadJson:
        return text  # refused later, with what is allowed


_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _check_plain(environ: Mapping[str, str]) -> None:
    """Refuses what looks like a mistyped variable. Others, such as those Kubernetes makes for a service, are let be."""
    for variable in environ:
        if variable.startswith(_PREFIX) and "__" not in variable and variable not in _PLAIN:
            name = variable[len(_PREFIX) :]
            near = difflib.get_close_matches(name, [known[len(_PREFIX) :] for known in _PLAIN], 1, 0.75)
            if near:
                raise ConfigError(f"{variable}: is no setting. Did you mean {_PREFIX}{near[0]}?")


def _check_section(section: str, origin: str) -> None:
    if section in _SECTIONS or section in _NAMED:
        return
    homes = [name for name, model in _SECTIONS.items() if section in model.model_fields]
    if homes:
        raise ConfigError(f"{origin}: {_shown(section)} belongs into a section: [{homes[0]}] {section}.")
    raise ConfigError(f"{origin}: [{_shown(section)}] is no section. {_nearest(section, [*_SECTIONS, *_NAMED])}")


def _check_key(path: _Where, origin: str) -> None:
    known = list(_model(path[0]).model_fields)
    if path[-1] not in known:
        raise ConfigError(f"{origin}: {_key(path)} is no setting. {_nearest(path[-1], known)}")


def _check_name(section: str, name: str, origin: str) -> None:
    if section == "queues" and not re.fullmatch(QUEUE_NAME, name):
        raise ConfigError(f"{origin}: [queues.{_shown(name)}] is no name for a queue; it must match {QUEUE_NAME}.")
    if section == "kinds" and not (name and len(name) <= 200 and name.isprintable()):
        raise ConfigError(f"{origin}: [kinds.{_shown(name)}] is no name for a kind; 1 to 200 printable characters are.")
    if section == "auth" and name != "oidc":
        raise ConfigError(f"{origin}: [auth.{_shown(name)}] is no section; there is [auth.oidc].")


def _model(section: str) -> type[_Section]:
    return _SECTIONS.get(section) or _NAMED[section]


def _table(value: Any, name: str, origin: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{origin}: {name} is {_json(value)}; it must be a table.")
    return cast("Mapping[str, Any]", value)


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."


def _refusal(error: ValidationError, given: Mapping[_Where, _Given]) -> ConfigError:
    """The first thing pydantic found, in words of ours."""
    where = tuple(str(step) for step in error.errors(include_url=False)[0]["loc"])
    path = next((where[:size] for size in range(len(where), 0, -1) if where[:size] in given), where)
    said = given.get(path)
    if said is None:
        return ConfigError(f"{'.'.join(where)} is not usable.")
    allowed = _model(path[0]).model_fields[path[-1]].description
    return ConfigError(f"{said.origin}: {_key(path)} is {_json(said.value)}; it must be {allowed}.", setting=_key(path))


def _key(path: _Where) -> str:
    return f"[{'.'.join(path[:-1])}] {path[-1]}"


def _json(value: Any) -> str:
    return _shown(json.dumps(value, ensure_ascii=False, default=str))


def _shown(text: str) -> str:
    return clean(text, 80).replace("\n", " ")
