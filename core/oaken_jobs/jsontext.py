"""JSON at the edge: what readers of JSON cannot keep is refused here, with its place, in both directions.

Refused are integers beyond 64 bits, NaN and infinities (1e400 is one), lone surrogates, an object with a key twice, and
nesting over `MAX_DEPTH`. The quick way leaves the reading to orjson and compares counts; only where something looks odd
is the text read again, slowly, to find what and where.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, cast

import orjson

from oaken_jobs.errors import BadJson, OakenError, PayloadInvalid, TooLarge
from oaken_jobs.redaction import clean

MAX_DEPTH = 100
"""Objects and lists inside one another, the outermost included."""
MIN_INT, MAX_INT = -(2**63), 2**64 - 1

_PATH_LIMIT = 200

# How this orjson marks a float so large that it may have been an integer.
_EXPONENT = b"e+" if b"e+" in orjson.dumps(2.0**64) else b"e"
_LONG_DIGITS = re.compile(rb"[0-9]{19}")
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}+(?![.eE])")


def parse(body: bytes | str) -> Any:
    """The value of a JSON text.

    Raises `BadJson` for what is not JSON, with line and column, and for what cannot be kept, with its path as a JSON
    Pointer (`/payload/items/3`; `/` is the whole).
    """
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    try:
        value = orjson.loads(raw)
        again = orjson.dumps(value)
    except (orjson.JSONDecodeError, TypeError) as error:
        _refuse(raw)
        if isinstance(error, json.JSONDecodeError):
            raise _syntax(error) from None
        raise BadJson("The text is not usable as JSON.") from None
    # An integer beyond 64 bits has become a float.
    if (
        _key_lost(raw, again)
        or (_EXPONENT in again and _LONG_DIGITS.search(raw) and _too_long(raw))
        or _depth(raw) > MAX_DEPTH
    ):
        _refuse(raw)
    return value


def dump(
    value: Any,
    *,
    what: str = "payload",
    max_bytes: int | None = None,
    setting: str = "",
    error: type[OakenError] = PayloadInvalid,
) -> str:
    """The compact JSON text of an object in memory. Tuples become lists; all else must be JSON values already.

    Raises `error`, naming the path but no value, for what cannot be kept, for other types and for keys that are not
    text; `TooLarge` over `max_bytes` of UTF-8, naming limit, size and `setting`. `what` is how messages call the value.
    """
    if not isinstance(value, dict):
        raise error(f"The {what} must be a JSON object; this is {_type_name(value)}.", path="/")
    try:
        text = orjson.dumps(value)
        if max_bytes is not None and len(text) > max_bytes:  # first, since the rest takes time by size
            named = f" ({setting})" if setting else ""
            raise TooLarge(
                f"The {what} is {len(text)} bytes of JSON; at most {max_bytes} are allowed{named}.",
                limit=max_bytes,
                actual=len(text),
                setting=setting,
            )
        # What orjson wrote in its own way (NaN as null, a UUID as text) does not come back equal.
        exact = _depth(text) <= MAX_DEPTH and orjson.loads(text) == value
    except (TypeError, RecursionError):
        text, exact = None, False
    if not exact:
        found = _problem(cast(Any, value))
        if found:
            raise error(f"The {what} cannot be kept: {found.words} at {found.path}.", path=found.path)
    if text is None:
        raise error(f"The {what} cannot be written as JSON.", path="/")
    return text.decode()


def containers(text: bytes) -> int:
    """How many objects and lists a text of JSON holds; of other text, a number as good as any."""
    brackets = text.count(b"[") + text.count(b"{")
    if brackets and b'"' in text:
        text = _without_strings(text)
        brackets = text.count(b"[") + text.count(b"{")
    return brackets


def _without_strings(text: bytes) -> bytes:
    """A text of valid JSON without its strings, keys included."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2])


def _key_lost(raw: bytes, again: bytes) -> bool:
    """Whether an object of `raw` had a key twice: then one is lost in `again`, together with its colon."""
    if b"\\u003a" not in raw and b"\\u003A" not in raw:  # colons that are written plainly in `again`
        return raw.count(b":") != again.count(b":")
    return _without_strings(raw).count(b":") != _without_strings(again).count(b":")


def _too_long(raw: bytes) -> bool:
    """Whether a text of valid JSON has an integer beyond 64 bits."""
    found = (match.group() for match in _LONG_INTEGER.finditer(_without_strings(raw)))
    return any(len(digits) > 20 or not MIN_INT <= int(digits) <= MAX_INT for digits in found)


def _depth(text: bytes) -> int:
    """How deep a text of valid JSON is nested; 0 where it is soon seen not to be too deep. Takes linear time."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return 0
    if b'"' in text:
        text = _without_strings(text)
    brackets = text.translate(None, _NO_BRACKETS)
    # What is empty is taken away, layer by layer: most texts are wide, and few are deep.
    flat, layers = brackets, 0
    while layers + len(flat) // 2 > MAX_DEPTH and layers < _LAYERS:
        flat = flat.replace(b"{}", b"").replace(b"[]", b"")
        layers += 2  # a list of empty objects goes at once
    if layers + len(flat) // 2 <= MAX_DEPTH:
        return 0
    return max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b")), default=0)


_LAYERS = 10
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", bytes((1, 1, 255, 255)))  # as signed bytes: 1 and -1


def _refuse(raw: bytes) -> None:
    """Finds out what is wrong with a text and raises it; returns if nothing is."""
    if not raw.strip():
        raise BadJson("The text is empty; it must be JSON.", line=1, column=1)
    try:
        text = raw.decode("utf-8", "surrogatepass")  # so that a surrogate is named by its path
    except UnicodeDecodeError as error:
        raise BadJson(f"The text is not UTF-8: byte {error.start} cannot be read.", byte=error.start) from None
    if text.startswith("\ufeff"):
        raise BadJson("The text begins with a byte order mark; JSON has none.", line=1, column=1)
    path = _too_deep(text)
    if path is not None:
        raise BadJson(f"The JSON cannot be kept: {_TOO_DEEP} at {path}.", path=path)
    try:
        value = _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        raise _syntax(error) from None
    found = _problem(value)
    if found:
        raise BadJson(f"The JSON cannot be kept: {found.words} at {found.path}.", path=found.path)


def _syntax(error: json.JSONDecodeError) -> BadJson:
    message = clean(error.msg.split(": line ")[0], 200)
    return BadJson(
        f"Not JSON: {message}: line {error.lineno}, column {error.colno}.", line=error.lineno, column=error.colno
    )


class _Twice(dict[str, Any]):
    """An object that had `key` twice."""

    key: str = ""


def _integer(text: str) -> int:
    # Longer ones are too large whatever they are, and reading their digits takes quadratic time.
    return int(text) if len(text) <= 20 else MAX_INT + 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = _Twice(found)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            twice.key = key
            break
        seen.add(key)
    return twice


# Takes everything that orjson takes and what is refused with a path besides: NaN, 1e400, surrogates, any integer.
_LENIENT = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{},:]', re.DOTALL)


def _too_deep(text: str) -> str | None:
    """The path of the first thing nested too deep, or None. Reads any text, JSON or not, once and without recursion."""
    steps: list[str | int] = []
    word = ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in ("[", "{"):
            if len(steps) == MAX_DEPTH:
                return _pointer(steps)
            steps.append(0 if token == "[" else "")
        elif token in ("]", "}"):
            if steps:
                steps.pop()
        elif token == ":":
            if steps and isinstance(steps[-1], str):
                steps[-1] = word
        elif token == ",":
            if steps and isinstance(steps[-1], int):
                steps[-1] += 1
        else:
            word = _unquoted(token) if len(steps) <= MAX_DEPTH else ""
    return None


def _unquoted(token: str) -> str:
    if "\\" in token:
        try:
            return str(json.loads(token))
        except ValueError:
            pass
    return token.strip('"')


class _Problem(NamedTuple):
    path: str
    words: str


_TOO_DEEP = f"nesting deeper than {MAX_DEPTH} levels"


def _problem(value: Any) -> _Problem | None:
    """The first thing in a value that cannot be kept. No recursion; a value that holds itself is nested too deep."""
    words = _own_problem(value)
    if words:
        return _Problem("/", words)
    steps: list[str | int] = []
    stack = [_children(value)]
    while stack:
        members, named = stack[-1]
        child = next(members, None)
        if child is None:
            stack.pop()
            if steps:
                steps.pop()
            continue
        key, item = child
        if named and type(key) is not str:
            return _Problem(_pointer(steps), f"a key of {_type_name(key)}, not text,")
        steps.append(key)
        if isinstance(key, str) and _SURROGATE.search(key):
            return _Problem(_pointer(steps), "a lone surrogate in the key")
        words = _own_problem(item)
        if words:
            return _Problem(_pointer(steps), words)
        if not isinstance(item, dict | list | tuple):
            steps.pop()
        elif len(stack) == MAX_DEPTH:
            return _Problem(_pointer(steps), _TOO_DEEP)
        else:
            stack.append(_children(item))
    return None


def _children(value: Any) -> tuple[Iterator[tuple[Any, Any]], bool]:
    """What a value contains, with keys or places, and whether they are keys."""
    if isinstance(value, dict):
        return iter(cast("dict[Any, Any]", value).items()), True
    return iter(enumerate(cast("Iterable[Any]", value) if isinstance(value, list | tuple) else ())), False


def _own_problem(item: Any) -> str | None:
    """What is wrong with a value itself, leaving aside what it contains."""
    if isinstance(item, _Twice):
        return f"the key {clean(item.key, 80)!r} twice in the object"
    if item is None or isinstance(item, bool | dict | list | tuple):
        return None
    if isinstance(item, str):
        return "a lone surrogate" if _SURROGATE.search(item) else None
    if isinstance(item, int):
        return None if MIN_INT <= item <= MAX_INT else "an integer beyond 64 bits"
    if isinstance(item, float):
        return None if math.isfinite(item) else "NaN or an infinite number"
    return f"a value of {_type_name(item)}, which JSON does not have,"


_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _pointer(steps: list[str | int]) -> str:
    text = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
    return clean(text, _PATH_LIMIT) or "/"


def _type_name(value: Any) -> str:
    return f"type {type(value).__name__}"
