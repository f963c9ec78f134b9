"""Query strings, as strictly read as bodies: the types of their values, and how a string becomes an object of them."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, Field

from oaken_jobs.errors import InvalidRequest
from oaken_jobs.requests import DEFAULT_PAGE, MAX_ID, MAX_PAGE, MAX_WAIT_SECONDS

MAX_FIELDS = 1000

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_FLAGS = {"1": True, "true": True, "0": False, "false": False}

# What cannot be read is left as it is; the model says then what it wanted.


def whole(value: Any) -> Any:
    """The number that a text of digits says."""
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _flag(value: Any) -> Any:
    return _FLAGS.get(value, value) if isinstance(value, str) else value


def words(value: Any) -> tuple[str, ...]:
    """What was given several times, with commas between, or both; spaces beside a comma are none of a word."""
    texts = cast("list[str]", value) if isinstance(value, list) else [str(value)]
    return tuple(word.strip() for text in texts for word in text.split(","))


def _ids(value: Any) -> tuple[Any, ...]:
    return tuple(whole(word) for word in words(value))


T = TypeVar("T")
Words = Annotated[tuple[T, ...], Field(max_length=100), BeforeValidator(words)]
"""As `words` has them."""
Ids = Annotated[tuple[Annotated[int, Field(gt=0, le=MAX_ID)], ...], Field(max_length=MAX_PAGE), BeforeValidator(_ids)]
QueryId = Annotated[int, BeforeValidator(whole), Field(gt=0, le=MAX_ID)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Limit = Annotated[int, BeforeValidator(whole), Field(ge=1, le=MAX_PAGE)]
Wait = Annotated[float, BeforeValidator(_number), Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)]
DEFAULT_LIMIT = DEFAULT_PAGE


def read_query(raw: bytes) -> dict[str, Any]:
    """The fields of a query string; one that is given several times is a list. Raises `InvalidRequest`."""
    if not raw:
        return {}
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise InvalidRequest("The query is not UTF-8 with percent-encoding.") from None
    except ValueError:
        raise InvalidRequest(f"The query has more than {MAX_FIELDS} fields.") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found
