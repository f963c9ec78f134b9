"""Messages as nobody should send them: from good ones by chance, from a seed, so that a failure can be looked at again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from oaken_mcp.catalogue import TOOLS

META = "io.modelcontextprotocol/"
MODERN = "2026-07-28"
METHODS = (
    *("initialize", "ping", "server/discover", "tools/list", "tools/call", "resources/list", "resources/read"),
    *("resources/templates/list", "resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get"),
    *("completion/complete", "logging/setLevel", "tasks/get", "tasks/update", "tasks/cancel", "tasks/list"),
    *("notifications/initialized", "notifications/cancelled", "notifications/progress", "sampling/createMessage"),
    *(
        "roots/list",
        "elicitation/create",
        "rpc.discover",
        "",
        "tools/call\0",
        "__class__",
        "../etc/passwd",
        "TOOLS/CALL",
    ),
)
WORDS = (
    *(
        "",
        "a",
        "#1",
        "1",
        "-1",
        "1e9",
        "true",
        "null",
        "[]",
        "{}",
        '{"a":1}',
        "oaken://jobs/1",
        "oaken://jobs/1/result",
    ),
    *(
        "oaken://jobs/-1",
        "oaken://queues",
        "file:///etc/passwd",
        "oaken://jobs/1%00",
        "work",
        "triage_failures",
        "default",
    ),
    *(
        "1-1-" + "0" * 24,
        "\0",
        "\u202e",
        "\ud800",
        "\U0001f600" * 50,
        "<script>",
        "' or 1=1 --",
        "%s%n",
        "x" * 5000,
        "\r\n\r\n",
    ),
    *("2026-07-28", "2025-06-18", "1999-01-01", "enqueue", "lease", "status"),
)
WAITS = frozenset({"wait", "seconds", "wait_seconds"})
"""Arguments by which a call could be made to wait."""


class Fuzz:
    """An endless supply."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def lines(self, count: int, era: str) -> Iterator[bytes]:
        """So many messages, none with a line break in it."""
        for number in range(count):
            yield self._line(number, era)

    def _line(self, number: int, era: str) -> bytes:
        message = self._message(number, era)
        for _ in range(self._random.choice((0, 0, 1, 1, 2))):
            message = self._twisted(message)
        raw = json.dumps(message).encode("utf-8", "surrogatepass")
        if self._random.random() < 0.15:
            raw = self._broken(raw)
        return raw.replace(b"\n", b" ").replace(b"\r", b" ")

    def _message(self, number: int, era: str) -> dict[str, Any]:
        pick = self._random
        method = pick.choice(METHODS) if pick.random() < 0.6 else "tools/call"
        params: dict[str, Any] = self._object(2)
        if method == "tools/call":
            tool = pick.choice(TOOLS)
            names = [*tool.takes.model_fields, *pick.choices(WORDS, k=1)]
            chosen = pick.sample(names, min(len(names), pick.randint(0, 5)))
            params |= {"name": tool.name, "arguments": {name: self._value(2) for name in chosen}}
        elif method.startswith("resources/"):
            params |= {"uri": pick.choice(WORDS)}
        elif method.startswith("tasks/"):
            params |= {"taskId": pick.choice(WORDS), "inputResponses": self._value(2)}
        elif method == "completion/complete":
            params |= {
                "ref": {"type": "ref/resource", "uri": "oaken://jobs/{id}"},
                "argument": {"name": "id", "value": "1"},
            }
        elif method == "prompts/get":
            params |= {"name": pick.choice(WORDS), "arguments": self._value(1)}
        elif method == "initialize":
            params |= {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}
        elif method == "notifications/cancelled":
            params |= {"requestId": self._value(0)}
        if era == "modern" or pick.random() < 0.1:
            capabilities = {"extensions": {META + "tasks": {}}} if pick.random() < 0.5 else {}
            params["_meta"] = {META + "protocolVersion": MODERN, META + "clientCapabilities": capabilities}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if not method.startswith("notifications/") or pick.random() < 0.2:
            message["id"] = number if pick.random() < 0.9 else self._value(1)
        return message

    def _twisted(self, value: Any, depth: int = 0) -> Any:
        """The same with one thing in it put wrong."""
        pick = self._random
        if isinstance(value, dict) and value and (depth < 1 or pick.random() < 0.7):
            name = pick.choice(sorted(value))
            action = pick.randrange(6)
            if action == 0:
                return {key: one for key, one in value.items() if key != name}
            if action == 1:
                return {**value, pick.choice(WORDS): self._value(1)}
            if action == 2:
                return {**value, name: self._bounded(name, self._value(2))}
            return {**value, name: self._bounded(name, self._twisted(value[name], depth + 1))}
        return self._value(2)

    def _bounded(self, name: str, value: Any) -> Any:
        return 0 if name in WAITS else value

    def _broken(self, raw: bytes) -> bytes:
        pick = self._random
        at = pick.randrange(len(raw) + 1)
        return pick.choice(
            (
                raw[:at],
                raw[:at] + bytes(pick.randrange(256) for _ in range(5)) + raw[at:],
                raw[at:],
                b"[" * pick.choice((10, 2000)) + raw,
                raw + raw,
                b"[" + raw + b"," + raw + b"]",
                raw.replace(b'"jsonrpc"', b'"jsonrpc":"2.0","jsonrpc"'),
                raw.replace(b":", b":" + b" " * 100),
                raw.replace(b"1", b"1" * 400),
                b"",
            )
        )

    def _value(self, depth: int) -> Any:
        pick = self._random
        kind = pick.randrange(9)
        if kind == 0:
            return None
        if kind == 1:
            return pick.choice((True, False))
        if kind == 2:
            return pick.choice((0, 1, -1, 2**31, 2**53, 2**63, -(2**64), 10**30))
        if kind == 3:
            return pick.choice((0.5, -0.0, 1e308, 1.5))
        if kind == 4 and depth:
            return [self._value(depth - 1) for _ in range(pick.randrange(4))]
        if kind == 5 and depth:
            return self._object(depth)
        return pick.choice(WORDS)

    def _object(self, depth: int) -> dict[str, Any]:
        return {
            name: self._bounded(name, self._value(depth - 1))
            for name in self._random.sample(WORDS, self._random.randrange(3))
        }
