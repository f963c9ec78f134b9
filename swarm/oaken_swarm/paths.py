"""Routes, and finding the one for a path: a walk along its segments, so that its cost does not grow with the number of routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from oaken_jobs.errors import MethodNotAllowed, NotFound
from oaken_jobs.redaction import clean
from oaken_jobs.requests import EmptyRequest, Request
from oaken_swarm.call import Answer, Call, Stream, unquoted

BodySize = Literal["small", "payload", "result", "bulk"]
"""How much a body may hold: a few fields, one payload, one result, or many of them."""


@dataclass(frozen=True)
class Route:
    """A method on a path, and what answers it. `{name}` in the path is any one segment.

    `takes` is the model of the query for GET and DELETE, of the body otherwise. `many` is the body for several at once; it has
    one field, by which it is told apart; `many_size` is its size where it differs. `needs` is the action, a key of `auth.MAY`, without
    which nothing of a body is read. An `open` route needs no token. `text` is the field that may also be the whole body, as a text; the
    other fields are then in the query.

    `repeats` says what becomes of an Idempotency-Key: `key` where the handler remembers it in its own transaction; otherwise the answer
    is kept, and of a call of which it is not known how it ended `itself` says that it may be made again. The answer of a `secret` route is
    not kept: a repeat is refused.

    The rest describes the interface: what the route `says` of itself, what it `gives` (`many_gives` for several at once; names in
    `answers`) with which `statuses`, and whether it `streams`.
    """

    method: str
    path: str
    handler: Callable[[Call, Any], Awaitable[Answer | Stream]]
    takes: type[Request] = EmptyRequest
    many: type[Request] | None = None
    size: BodySize = "small"
    many_size: BodySize | None = None
    needs: str | None = None
    text: str | None = None
    repeats: Literal["key", "itself"] | None = None
    secret: bool = False
    open: bool = False
    says: str = ""
    gives: str | None = None
    many_gives: str | None = None
    statuses: tuple[int, ...] = (200,)
    streams: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return self.method != "GET"

    @property
    def has_body(self) -> bool:
        return self.method not in ("GET", "DELETE")

    def model_for(self, data: Any) -> type[Request]:
        """The model that a body is meant to be of."""
        if self.many is not None and isinstance(data, dict) and self._mark in data:
            return self.many
        return self.takes

    def begins_many(self, begin: bytes) -> bool:
        """Whether a body that begins so is the one for several at once: its field comes first."""
        return re.match(rb'\s*\{\s*"%b"' % self._mark.encode(), begin) is not None

    @cached_property
    def _mark(self) -> str:
        return next(iter(self.many.model_fields)) if self.many is not None else ""


class Placed(Protocol):
    """What may be found by a method and a path: a route of the interface, or a page."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...


R = TypeVar("R", bound=Placed)


@dataclass(slots=True)
class _Node(Generic[R]):
    literal: dict[str, _Node[R]] = field(default_factory=dict[str, "_Node[R]"])
    param: _Node[R] | None = None
    methods: dict[str, tuple[R, tuple[str, ...]]] = field(default_factory=dict[str, "tuple[R, tuple[str, ...]]"])
    """Route and the names of its parameters, in order."""
    allowed: list[str] = field(default_factory=list[str])
    """What may be done here, HEAD and OPTIONS included."""


class Found(NamedTuple, Generic[R]):
    """What a path leads to: None for OPTIONS, which only asks for what is `allowed`."""

    route: R | None
    params: dict[str, str]
    allowed: list[str]


class Paths(Generic[R]):
    """All routes of a server, or all its pages."""

    def __init__(self, routes: Iterable[R]) -> None:
        self._root = _Node[R]()
        self._fixed: dict[tuple[str, str], Found[R]] = {}
        """By method and path, what the walk finds where a path has no parameters."""
        for route in routes:
            node = self._root
            names: list[str] = []
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    node.param = node.param or _Node[R]()
                    node = node.param
                else:
                    node = node.literal.setdefault(segment, _Node[R]())
            node.methods[route.method] = (route, tuple(names))
            also = {"HEAD", "OPTIONS"} if "GET" in node.methods else {"OPTIONS"}
            node.allowed[:] = sorted(node.methods.keys() | also)
            if not names:
                # The list itself, since other methods of the same path may follow.
                self._fixed[route.method, route.path] = Found(route, {}, node.allowed)

    def find(self, method: str, path: str) -> Found[R]:
        """The route for a path as it was sent, percent-encoding included. Raises `NotFound` and `MethodNotAllowed`.

        HEAD is answered as GET.
        """
        fixed = self._fixed.get((method, path))
        if fixed is not None:
            return fixed
        node: _Node[R] | None = self._root
        values: list[str] = []
        for segment in path.split("/")[1:]:
            child = node.literal.get(segment)
            if child is None and node.param is not None and segment:
                child = node.param
                values.append(segment)
            if child is None:
                node = None
                break
            node = child
        if node is None or not node.methods:
            raise NotFound(
                f"There is nothing at {clean(path, 200)!r}. This is Oaken's HTTP interface; routes begin with /v1 and need a token, "
                "see /healthz."
            )
        if method == "OPTIONS":
            return Found(None, {}, node.allowed)
        found = node.methods.get("GET" if method == "HEAD" else method)
        if found is None:
            raise MethodNotAllowed(
                f"{clean(method, 20)} is not possible here; use {' or '.join(node.allowed)}.", allow=node.allowed
            )
        route, names = found
        return Found(route, {name: unquoted(value) for name, value in zip(names, values, strict=True)}, node.allowed)
