"""Finds the plugins of a process, checks each by itself, and puts those to work that are sound.

They come from the entry points `oaken.plugins` of installed packages, and from `[plugins] modules`. A broken one is left out with all
that is its own and said to be broken; the rest start.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, NamedTuple, cast

from oaken_jobs import config, pipeline
from oaken_jobs.clock import Clock
from oaken_jobs.commit import Committer
from oaken_jobs.config import Settings
from oaken_jobs.errors import OakenError
from oaken_jobs.events.bus import Bus
from oaken_jobs.handlers import Handlers
from oaken_jobs.health import HealthLoop
from oaken_jobs.held import described
from oaken_jobs.kinds import Kind, Rules
from oaken_jobs.plugin import NotConfigured, Plugin
from oaken_jobs.redaction import error_text
from oaken_jobs.schedules import Schedules, checked
from oaken_jobs.stopping import every
from oaken_jobs.store.operations import ForgetHealth

GROUP: Final = "oaken.plugins"
ATTRIBUTE: Final = "plugin"
"""What the plugin of a module in `[plugins] modules` is called there."""

log = logging.getLogger("oaken.plugins")


class Left(NamedTuple):
    """A plugin that was left out, and why."""

    name: str
    reason: str


@dataclass
class Loaded:
    """The plugins of a process, and the rules with all their kinds."""

    rules: Rules
    plugins: list[Plugin] = field(default_factory=list[Plugin])
    broken: list[Left] = field(default_factory=list[Left])
    absent: list[Left] = field(default_factory=list[Left])
    """Installed, but not configured."""

    def handlers(self) -> Handlers:
        """What runs in the process: the built-in handlers and those of the plugins."""
        handlers = pipeline.handlers()
        for plugin in self.plugins:
            handlers.take(plugin.handlers)
        return handlers

    def report(self) -> None:
        """Logs one line for each broken plugin; the absent ones only for who debugs."""
        for name, reason in self.broken:
            log.error("the plugin %s is broken and left out: %s", name, reason)
        for name, reason in self.absent:
            log.debug("the plugin %s is not configured: %s", name, reason)


class _Broken(Exception):
    """Why a plugin is left out."""


def load(settings: Settings) -> Loaded:
    """Loads each plugin and checks it against those before it. Raises `ConfigError` for settings of Oaken's own."""
    builtin = list(pipeline.kinds().values())
    loaded = Loaded(config.rules(settings, builtin))
    unclaimed = set(settings.plugins.settings)
    for source in _sources(settings):
        name = source.name
        unclaimed.discard(name)
        try:
            # What stands on stdout is the answer of a command, or a protocol; a plugin that prints is not to be part of it.
            with redirect_stdout(sys.stderr):
                plugin = _made(source, settings.plugins.settings.get(name))
            rules = _with(plugin, loaded, settings, builtin)
        except NotConfigured as why:
            loaded.absent.append(Left(name, error_text(str(why))))
        except KeyboardInterrupt:
            raise  # the user's
        except BaseException as why:
            # One that leaves the process while it is imported would take all others with it.
            told = str(why) if isinstance(why, (_Broken, OakenError)) else described(why)
            loaded.broken.append(Left(name, error_text(" ".join(told.split()))))
        else:
            loaded.plugins.append(plugin)
            loaded.rules = rules
    for name in sorted(unclaimed):
        loaded.broken.append(Left(name, f"there is no such plugin, but [plugins.settings.{name}]. Check the name."))
    return loaded


def _sources(settings: Settings) -> Iterator[EntryPoint]:
    """Where plugins are, each once, by the names that their settings have."""
    found = sorted(entry_points(group=GROUP), key=lambda source: source.name)
    yield from found
    seen = {source.value for source in found}
    for module in settings.plugins.modules:
        source = EntryPoint(module.rpartition(".")[2], f"{module}:{ATTRIBUTE}", GROUP)
        if source.value not in seen:
            seen.add(source.value)
            yield source


def _made(source: EntryPoint, settings: dict[str, Any] | None) -> Plugin:
    found: object = source.load()
    if isinstance(found, Plugin):
        if settings is not None:
            raise _Broken(f"it takes no settings; leave [plugins.settings.{source.name}] out")
        return found
    if not callable(found):
        raise _Broken(f"{source.value} is {_article(found)}; it must be a Plugin, or a function that returns one")
    made = cast("Callable[[dict[str, Any]], object]", found)(settings or {})
    if made is None:
        raise NotConfigured(f"it has no use for [plugins.settings.{source.name}] as it is")
    if not isinstance(made, Plugin):
        raise _Broken(f"{source.value} returned {_article(made)}; it must return a Plugin, or None")
    return made


def _with(plugin: Plugin, loaded: Loaded, settings: Settings, builtin: list[Kind]) -> Rules:
    """The rules with this plugin among the others. Raises what is wrong with it."""
    if any(plugin.name == other.name for other in loaded.plugins):
        raise _Broken(f"there is a plugin named {plugin.name} already; it must have another name")
    known = {kind.name: "built in" for kind in builtin}
    known |= {name: f"the plugin {other.name}'s" for other in loaded.plugins for name in other.kinds}
    for name in plugin.kinds:
        if name in known:
            raise _Broken(f"it declares the kind {name!r}, which is {known[name]}; it must have another name")
    taken = {kind: other.name for other in loaded.plugins for kind in other.handlers.kinds}
    for name in plugin.handlers.kinds:
        if name in taken:
            raise _Broken(f"it handles the kind {name!r}, which the plugin {taken[name]} does already")
        if name in loaded.rules.internal:
            raise _Broken(f"it handles the kind {name!r}, which only Oaken itself runs")
        if name not in plugin.kinds and name not in loaded.rules.kinds:
            raise _Broken(f"it handles the kind {name!r}, which nobody declares; plugin.kind({name!r}) does")
    at_work = (*loaded.plugins, plugin)
    handled = {kind: other.name for other in at_work for kind in other.handlers.kinds}
    kinds = [replace(kind, plugin=handled.get(kind.name)) for kind in builtin]
    kinds += [kind for other in at_work for kind in other.kinds.values()]
    rules = config.rules(settings, kinds)
    for name, request in plugin.schedules.items():
        try:
            checked(rules, plugin.principal, name, request, plugin.name)
        except OakenError as why:
            raise _Broken(f"schedule {name}: {why.message}") from None
    return rules


def _article(found: object) -> str:
    return f"of type {type(found).__name__}"


class AtWork:
    """The plugins of a process that runs their handlers: their schedules are kept, their health is looked at, and their events are
    written. `start` and `stop` are idempotent."""

    def __init__(self, loaded: Loaded, schedules: Schedules, bus: Bus, commit: Committer, clock: Clock) -> None:
        """`bus` is not started yet: what plugins listen for is named to it here."""
        self._plugins = loaded.plugins
        self._schedules = schedules
        self._commit = commit
        self._loops = [
            HealthLoop(plugin, plugin.health_check, commit, clock)
            for plugin in loaded.plugins
            if plugin.health_check is not None
        ]
        for plugin in self._plugins:
            for listener in plugin.listeners:
                bus.handle(f"the plugin {plugin.name}", listener.kinds, listener.function)

    async def start(self) -> None:
        """Begins. Schedules of plugins that are not there, or do not declare them any more, are gone afterwards."""
        await self._schedules.keep_owned({plugin.principal: plugin.schedules for plugin in self._plugins})
        await self._commit.call(ForgetHealth(tuple(loop.plugin for loop in self._loops)))
        for plugin in self._plugins:
            plugin.attach(self._commit.call)
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Ends what goes on by itself. A health check that ignores its cancellation keeps it pending."""
        await every(*((f"the health check of {loop.plugin}", loop.stop) for loop in self._loops))
        for plugin in self._plugins:
            plugin.attach(None)
