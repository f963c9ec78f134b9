import enum
import json
import math
import time
import uuid
from collections import OrderedDict
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaken_jobs.errors import BadJson, PayloadInvalid, ResultInvalid, TooLarge
from oaken_jobs.jsontext import (
    MAX_DEPTH,
    MAX_INT,
    MIN_INT,
    _depth,  # pyright: ignore[reportPrivateUsage]
    dump,
    parse,
)

keys = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(MIN_INT, MAX_INT)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
objects = st.dictionaries(
    keys, st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)
)


@given(objects)
def test_what_was_dumped_is_parsed_to_the_same(value: dict[str, Any]) -> None:
    assert parse(dump(value)) == value


@given(objects)
def test_any_way_of_writing_an_object_is_parsed_to_the_same(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse(text) == value
        assert parse(text.encode()) == value


@given(objects, keys)
def test_a_key_that_stands_twice_is_always_found(value: dict[str, Any], key: str) -> None:
    name = json.dumps(key)
    with pytest.raises(BadJson) as refused:
        parse(f'{{"rest": {json.dumps(value)}, "list": [0, {{{name}: 1, "{key.encode().hex()}!": 2, {name}: 1}}]}}')
    assert refused.value.details["path"] == "/list/1"


@given(objects, st.integers(max_value=MIN_INT - 1) | st.integers(min_value=MAX_INT + 1))
def test_an_integer_beyond_64_bits_is_always_found(value: dict[str, Any], number: int) -> None:
    with pytest.raises(BadJson) as refused:
        parse(f'{{"rest": {json.dumps(value)}, "n": [{number}]}}')
    assert refused.value.details["path"] == "/n/0"
    with pytest.raises(PayloadInvalid) as refused_value:
        dump({"rest": value, "n": [number]})
    assert refused_value.value.details["path"] == "/n/0"


@given(st.binary(max_size=60))
def test_bytes_are_parsed_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        value = parse(body)
    except BadJson:
        return
    assert json.loads(body) == value


def _nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('{"payload": {"items": [0, 1, 2, NaN]}}', "/payload/items/3", "NaN or an infinite number"),
        ("[Infinity]", "/0", "NaN or an infinite number"),
        ('{"a": -Infinity}', "/a", "NaN or an infinite number"),
        ('{"a": 1e400}', "/a", "NaN or an infinite number"),
        ('{"a": -1e400}', "/a", "NaN or an infinite number"),
        ("1" * 400 + ".0", "/", "NaN or an infinite number"),
        ('{"a": 18446744073709551616}', "/a", "an integer beyond 64 bits"),
        ('{"a": -9223372036854775809}', "/a", "an integer beyond 64 bits"),
        ("[" + "9" * 100_000 + "]", "/0", "an integer beyond 64 bits"),
        ('["\\"", 1e22, 1234567890123456789, -9223372036854775809]', "/3", "an integer beyond 64 bits"),
        (r'{"a": ["\ud800"]}', "/a/0", "a lone surrogate"),
        (r'{"a": ["\udc00\ud800"]}', "/a/0", "a lone surrogate"),
        (r'{"\ud800": 1}', "/\ufffd", "a lone surrogate in the key"),
        ('["\ud800"]', "/0", "a lone surrogate"),
        ('{"a": 1, "a": 1}', "/", "the key 'a' twice"),
        ('{"b": [{"a": 1, "x": {}, "a": 2}]}', "/b/0", "the key 'a' twice"),
        (r'{"b": {"a": ":", "\u0061": 2}}', "/b", "the key 'a' twice"),
        (r'{"a": 1, "a": "\u003a"}', "/", "the key 'a' twice"),
        (r'{"a": 1, "a": 2, "b": "\u003A\u003a"}', "/", "the key 'a' twice"),
        ('{"a/b~c": NaN}', "/a~1b~0c", "NaN"),
        (_nested(MAX_DEPTH + 1), "/0" * MAX_DEPTH, "nesting deeper than 100 levels"),
        ('{"a": ' * 101 + "1" + "}" * 101, "/a" * MAX_DEPTH, "nesting deeper than 100 levels"),
        ('[{"a": [1, [], {"b": "[{", "c": ' + _nested(97) + "}]}]", "/0/a/2/c" + "/0" * 96, "nesting deeper"),
    ],
)
def test_what_readers_of_json_cannot_keep_is_refused_with_its_path(text: str, path: str, words: str) -> None:
    with pytest.raises(BadJson) as refused:
        parse(text)
    assert refused.value.details["path"] == (path if len(path) <= 200 else path[:199] + "…")
    assert words in refused.value.message
    assert refused.value.details["path"] in refused.value.message
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("  \n ", 1, 1),
        ("nonsense", 1, 1),
        ("{'a': 1}", 1, 2),
        ('{"a" 1}', 1, 6),
        ('{\n  "a": 1,\n  "b" 2\n}', 3, 7),
        ("[1] 2", 1, 5),
        ("[1", 1, 3),
        ("01", 1, 2),
        ('"\x01"', 1, 2),
        ("\ufeff{}", 1, 1),
    ],
)
def test_what_is_not_json_is_refused_with_its_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(BadJson) as refused:
        parse(text)
    assert refused.value.details["line"] == line
    assert abs(refused.value.details["column"] - column) <= 1


@pytest.mark.parametrize("body", [b"\xff", b'{"a": "\xc3"}', b'"\xc0\xaf"', '{"a": 1}'.encode("utf-16")])
def test_what_is_not_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(BadJson, match="not UTF-8: byte"):
        parse(body)


def test_a_surrogate_written_out_in_bytes_is_refused_with_its_path() -> None:
    with pytest.raises(BadJson, match="lone surrogate at /a"):
        parse(b'{"a": "\xed\xa0\x80"}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", MAX_INT),
        ("-9223372036854775808", MIN_INT),
        ("123456789012345678901.5", 123456789012345678901.5),
        ('"123456789012345678901234567890 1e+22"', "123456789012345678901234567890 1e+22"),
        (
            "[0.12345678901234567890e22, 1e-12345678901234567890, 12345678901234567890]",
            [1234567890123456789012.0, 0.0, 12345678901234567890],
        ),
        ('["12345678901234567890", 1e+22]', ["12345678901234567890", 1e22]),
        ('"\\u0000"', "\x00"),
        ('"\\ud83d\\ude00"', "😀"),
        ('{"\\u003a": ":", "a": "\\u003A"}', {":": ":", "a": ":"}),
        ('{"a": {"a": 1}, "b": {"a": 1}}', {"a": {"a": 1}, "b": {"a": 1}}),
        (" [ ]\n", []),
        ("null", None),
        ('"' + "[{" * 200 + '"', "[{" * 200),
        ('["' + '\\"[\\\\' * 200 + '"]', ['"[\\' * 200]),
        ("[" + "[]," * 500 + "[]]", [[]] * 501),
    ],
)
def test_json_is_parsed_as_it_says(text: str, value: object) -> None:
    assert parse(text) == value
    assert parse(text.encode()) == value


def test_a_hundred_levels_are_allowed_both_ways() -> None:
    value: Any = {}
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value}
    assert parse(dump(value)) == value
    with pytest.raises(PayloadInvalid, match="deeper than 100 levels at /a/a"):
        dump({"a": value})
    assert parse(_nested(MAX_DEPTH)) is not None


@pytest.mark.parametrize("text", ["[", "{", '{"a":', '[{"a":', '"', '"\\', "\\", "[]", "{}", ",", "]", '["a",'])
def test_millions_of_anything_are_refused_without_a_crash(text: str) -> None:
    start = time.thread_time()
    with pytest.raises(BadJson):
        parse(text * 2_000_000)
    assert time.thread_time() - start < 10


def _seconds(text: bytes) -> float:
    """Of this thread's own, since other tests run meanwhile."""
    start = time.thread_time()
    parse(text)
    return time.thread_time() - start


@pytest.mark.parametrize(
    "odd",
    [
        b"[" * 90 + b"]" * 90,
        b'"\\u003a"',
        b'"\\u003c"',
        b'["1234567890123456789", 1e22]',
        b"[1234567890123456789, 1e22]",
    ],
)
def test_nothing_that_is_taken_is_read_the_slow_way(odd: bytes) -> None:
    plain = b"[" + b"[0]," * 300_000
    slow = min(_seconds(plain + odd * 1 + b"]") for _ in range(3))
    assert slow < 8 * min(_seconds(plain + b"0]") for _ in range(3)) + 0.05


def test_deep_texts_take_time_by_their_size_and_not_by_their_depth() -> None:
    def text(depth: int) -> bytes:
        one = b"[" * depth + b"]" * depth
        return b"[" + b",".join([one] * (900_000 // depth)) + b"]"

    shallow = min(_depth_seconds(text(3)) for _ in range(3))
    assert min(_depth_seconds(text(95)) for _ in range(3)) < 4 * shallow + 0.02


def _depth_seconds(text: bytes) -> float:
    start = time.thread_time()
    _depth(text)
    return time.thread_time() - start


class _Colour(enum.Enum):
    RED = "red"


class _Text(str):
    pass


class _Secret:
    def __repr__(self) -> str:
        return "hunter2"


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ({"a": math.nan}, "/a", "NaN or an infinite number"),
        ({"a": None, "b": [math.inf]}, "/b/0", "NaN or an infinite number"),
        ({"a": -math.inf}, "/a", "NaN or an infinite number"),
        ({"a": 2**64}, "/a", "an integer beyond 64 bits"),
        ({"a": -(2**63) - 1}, "/a", "an integer beyond 64 bits"),
        ({"a": "x\ud800"}, "/a", "a lone surrogate"),
        ({"a": {"\udc00": 1}}, "/a/\ufffd", "a lone surrogate in the key"),
        ({1: 2}, "/", "a key of type int"),
        ({"a": [{None: 2}]}, "/a/0", "a key of type NoneType"),
        ({"a": {_Text("b"): 2}}, "/a", "a key of type _Text"),
        ({"a": {1, 2}}, "/a", "a value of type set"),
        ({"a": b"x"}, "/a", "a value of type bytes"),
        ({"a": date(2026, 1, 1)}, "/a", "a value of type date"),
        ({"a": uuid.uuid4()}, "/a", "a value of type UUID"),
        ({"a": _Colour.RED}, "/a", "a value of type _Colour"),
        ({"a": _Secret()}, "/a", "a value of type _Secret"),
        ([], "/", "must be a JSON object; this is type list"),
        ("text", "/", "must be a JSON object; this is type str"),
        (None, "/", "must be a JSON object; this is type NoneType"),
    ],
)
def test_a_value_that_json_cannot_keep_is_refused_with_its_path_and_without_its_words(
    value: Any, path: str, words: str
) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        dump(value)
    assert refused.value.details["path"] == path
    assert words in refused.value.message
    assert "hunter2" not in refused.value.message


def test_a_value_that_holds_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["a"] = value
    with pytest.raises(PayloadInvalid, match="nesting deeper"):
        dump(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "{}"),
        ({"a": [1, 2.5, True, None, "é😀"]}, '{"a":[1,2.5,true,null,"é😀"]}'),
        ({"a": '\x00\n"'}, '{"a":"\\u0000\\n\\""}'),
        ({"a": (1, 2)}, '{"a":[1,2]}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        ({"n": MAX_INT, "m": MIN_INT}, f'{{"n":{MAX_INT},"m":{MIN_INT}}}'),
    ],
)
def test_an_object_is_dumped_as_compact_text(value: Any, text: str) -> None:
    assert dump(value) == text


def test_what_is_too_large_is_refused_with_limit_size_and_setting() -> None:
    setting = "[jobs] max_payload_bytes"
    assert dump({"a": "é"}, max_bytes=10, setting=setting) == '{"a":"é"}'
    with pytest.raises(TooLarge) as refused:
        dump({"a": "é"}, max_bytes=9, setting=setting)
    assert refused.value.details == {"limit": 9, "actual": 10, "setting": setting}
    for part in ("payload", "9", "10", setting):
        assert part in refused.value.message


def test_the_refusal_is_of_the_class_and_the_name_that_were_asked_for() -> None:
    with pytest.raises(ResultInvalid, match="The result cannot be kept"):
        dump({"a": math.nan}, what="result", error=ResultInvalid)
