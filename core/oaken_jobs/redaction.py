"""Takes secrets out of text that is kept or shown, and makes text safe to store.

Each pattern runs in time proportional to the text. A pattern is a prefix and a run of characters with nothing required
after it (a failure costs at most the run's least length, a success consumes what it read), or its unbounded runs cannot
contain its own start, or its runs are bounded. Runs of alternatives give nothing back (`++`), which also saves memory.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

MARK = "[redacted]"
ERROR_LIMIT = 500
"""Characters of an error that are kept."""


class _Rule(NamedTuple):
    hints: tuple[str, ...]
    """The pattern is tried only on text that has one of these; those in lower case are found in any case."""
    pattern: re.Pattern[str]
    replacement: str = MARK


def _starts(prefix: str) -> str:
    """A prefix that does not begin inside a word, where an escape (`\\n`, `\\u003d`, `%20`) is no part of a word.

    The prefix comes first and the look behind after it, so that the engine can search for the prefix.
    """
    p = re.escape(prefix)
    return rf"{p}(?:(?<![A-Za-z0-9]{p})|(?<=\\[nrtbf]{p})|(?<=\\u[0-9a-fA-F]{{4}}{p})|(?<=%[0-9a-fA-F]{{2}}{p}))"


def _key(prefix: str, rest: str) -> _Rule:
    return _Rule((prefix,), re.compile(_starts(prefix) + rest))


# Of each provider: the fixed beginning of its keys, and what follows.
_KEYS: list[_Rule] = [
    *(
        _key(f"sk-{p}", r"[\w-]{16,}") for p in ("ant-", "proj-", "svcacct-", "admin-", "or-", "lf-")
    ),  # Anthropic, OpenAI …
    _key("sk-", r"[A-Za-z0-9]{20,}"),
    *(_key(p, r"[A-Z0-9]{16}(?![A-Za-z0-9])") for p in ("AKIA", "ASIA", "ABIA", "ACCA")),  # AWS
    *(_key(f"gh{p}_", r"\w{20,}(?:[.-]\w{10,})*") for p in "pousr"),  # GitHub
    _key("github_pat_", r"\w{20,}"),
    *(
        _key(f"gl{p}-", r"[\w-]{20,}(?:\.[\w-]{2,})*")  # GitLab
        for p in ("pat", "ptt", "rt", "dt", "oas", "cbt", "ft", "imt", "agent", "soat", "ffct", "rtr")
    ),
    *(_key(f"xox{p}", r"[\w-]{10,}") for p in ("a-", "b-", "c-", "d-", "e-", "o-", "p-", "r-", "s-", "e.xox")),  # Slack
    _key("xapp-", r"[\w-]{20,}"),
    _key("hooks.slack.com/services/", r"[\w/]{20,}"),
    _key("AIza", r"[\w-]{35}(?![\w-])"),  # Google
    _key("ya29.", r"[\w-]{20,}"),
    _key("GOCSPX-", r"[\w-]{20,}"),
    _key("1//0", r"[\w-]{30,}"),
    *(_key(f"{p}_{mode}_", r"[A-Za-z0-9]{10,}") for p in ("sk", "rk") for mode in ("live", "test")),  # Stripe
    _key("whsec_", r"[A-Za-z0-9+/=]{20,}"),
    _key("hf_", r"[A-Za-z0-9]{20,}"),  # Hugging Face
    _key("api_org_", r"[A-Za-z0-9]{20,}"),
    _key("npm_", r"[A-Za-z0-9]{30,}"),
    _key("pypi-", r"(?:AgE[\w-]{16,}|[\w-]{50,})"),
    *(
        _key(p, r"[\w-]{20,}")
        for p in (
            "gsk_",
            "xai-",
            "r8_",
            "pplx-",
            "nvapi-",
            "dop_v1_",
            "dckr_pat_",
            "shpat_",
            "shpss_",
            "glsa_",
            "sntrys_",
        )
    ),
    *(_key(p, r"[\w-]{20,}") for p in ("hvs.", "hvb.", "lin_api_", "ntn_", "tskey-", "PMAK-", "NRAK-", "sbp_", "dapi")),
    _key("SG.", r"[\w-]{16,}\.[\w-]{16,}"),
    _key("AGE-SECRET-KEY-1", r"[A-Z0-9]{20,}"),
    # Our own. Nothing legible goes on for so long after these letters, so it may also begin inside a word.
    _Rule(("oak_",), re.compile(r"oak_[\w-]{32,}")),
]

_NAME = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token"
    r"|(?:api|access|private|secret|account|signing|encryption|shared|auth|master)[_ -]?key|credentials?)"
)
# Of an assignment: what is left of the name's quote, the sign, and the value: quoted, quoted inside a quoted text, or
# bare. A value is taken to its quote's end or the line's, so that one whose end was cut off goes as well.
_SIGN = r"""\d{0,3}(?:\\{0,8}["'])?[ \t]{0,16}(?:=>|:=|[:=])[ \t]{0,16}"""
_NOT_SECRET = (
    r"(?!\[redacted\])"
    r"""(?!(?:none|null|nil|true|false|undefined)(?:[\s,;)}\]"'\\&]|\Z))"""
    r"""(?![{\[][ \t\r\n]{0,8}["'{}\[\]\\])"""  # an object or a list of JSON
)
_VALUE = (
    r"""(?:(")(?:[^"\\\r\n]++|\\.)++\\?("?)"""
    r"""|(')(?:[^'\\\r\n]++|\\.)++\\?('?)"""
    r"""|(\\+["'])(?:[^"'\\\r\n]++|\\\\(?:\\.|[^\\\r\n])|\\[^"'\\\r\n])++((?:\\+["'])?)"""
    r"""|(?:[^\s"'&\\]++|\\(?![nrt"'])|&(?![\w.%-]{1,64}=))++)"""
)
_IN_ITS_QUOTES = rf"\2\4\6{MARK}\3\5\7"  # so that JSON stays JSON

_RULES: list[_Rule] = [
    # A block whose end is missing goes to the end of the text.
    _Rule(
        ("-----BEGIN ",),
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z0-9 ]{0,20}-----"
            r"(?:[^-]++|-(?!----END ))*+(?:-----END [A-Z0-9 ]{0,60}-{0,5})?"
        ),
    ),
    # With a slash in the password this is no URL any more; it is still a password.
    _Rule(
        ("://",),
        re.compile(
            r"""://(?:[^\s/:@"'<>]*+:(?:[^\s/"'<>]+@|(?!\d{1,5}/)[^\s"'<>]{1,100}@)|[^\s/:@"'<>]{20,}+@)""",
        ),
        f"://{MARK}@",
    ),
    _Rule(
        ("authorization",),
        re.compile(
            r"""(authorization(?:\\{0,8}["'])?[ \t]{0,16}[:=][ \t]{0,16}(?:\\{0,8}["'])?)"""
            r"""(?:(?:bearer|basic|token|digest|negotiate|apikey|bot)[ \t]{1,16})?[^\s"',;\\]+""",
            re.IGNORECASE,
        ),
        rf"\1{MARK}",
    ),
    _Rule(
        ("bearer",),
        re.compile(
            r"(bearer(?:\s|%20){1,8})"
            r"(?!(?:tokens?|auth(?:entication|orization)?|schemes?|required|credentials?|header|error|realm)\b(?![-_.~+/=]))"
            r"[\w.~+/=-]{6,}",
            re.IGNORECASE,
        ),
        rf"\1{MARK}",
    ),
    # Three parts signed, five encrypted; cut off in the first or second part.
    _Rule(
        ("eyJ",),
        re.compile(_starts("eyJ") + r"(?<![_-]eyJ)[\w-]{8,}+(?:(?:\.[\w-]*+){2,4}|\.?[\w-]*+\Z)"),
    ),
    *_KEYS,
    _Rule(
        ("pass", "pwd", "secret", "token", "key", "credential"),
        re.compile(rf"({_NAME}{_SIGN}){_NOT_SECRET}{_VALUE}", re.IGNORECASE),
        rf"\1{_IN_ITS_QUOTES}",
    ),
    _Rule(
        ("--",),
        re.compile(rf"(--(?:[a-z]++-){{0,4}}{_NAME}[ \t]{{1,16}})(?!--|\[redacted\]){_VALUE}", re.IGNORECASE),
        rf"\1{_IN_ITS_QUOTES}",
    ),
]


def redact(text: str) -> str:
    """The text with secrets replaced by `[redacted]`: keys of providers, bearer tokens, passwords and the like.

    Digests, UUIDs, commit ids and encoded images stay. Takes time proportional to the text, whatever it holds.
    """
    lower = text.lower()
    for hints, pattern, replacement in _RULES:
        if any(hint in (lower if hint.islower() else text) for hint in hints):
            text = pattern.sub(replacement, text)
    return text


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CLUSTER = 32  # characters of one visible sign that a cut steps back over, at most


def clean(text: str, limit: int | None = None) -> str:
    """The text as it may be stored: each control character but newline and tab a space, each lone surrogate U+FFFD.

    Line ends become `\\n`. Everything else is kept as sent, direction marks included. With `limit`, at most that many
    characters, the last one `…` where something was cut; a sign made of several characters is not split.
    """
    if limit is not None:
        # Two characters become one at most (a line end), so this much decides what is kept.
        text = text[: 2 * limit + 2]
    if not text.isprintable():
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _SURROGATE.sub("\ufffd", _CONTROL.sub(" ", text))
    if limit is None or len(text) <= limit:
        return text
    return text[: _boundary(text, limit - 1)] + "…" if limit > 0 else ""


def _boundary(text: str, end: int) -> int:
    """The last place at or before `end` that does not split a sign; `end` itself where that would be far."""
    for cut in range(end, max(0, end - _CLUSTER), -1):
        before, after = text[cut - 1], text[cut]
        if before == "\u200d" or after == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff":
            continue
        if unicodedata.category(after) in ("Mn", "Me", "Mc"):
            continue
        if _is_flag_half(after) and _flag_halves_before(text, cut) % 2:
            continue
        return cut
    return end


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flag_halves_before(text: str, cut: int) -> int:
    count = 0
    while count < min(cut, _CLUSTER) and _is_flag_half(text[cut - 1 - count]):
        count += 1
    return count


_WINDOW = 16_384
_MARGIN = 1_024
_TAIL = 65_536
_TAIL_MARGIN = 8_192
"""More than `_MARGIN`: a block of a private key is known by its beginning alone."""


def error_text(text: str) -> str:
    """An error as it is stored: secrets redacted, then cleaned and cut to 500 characters. Quick for any length."""
    return beginning(text, ERROR_LIMIT)


def beginning(text: str, limit: int) -> str:
    """The first `limit` characters of a text, at most 15,000, secrets redacted before it is cut. Quick for any length."""
    if len(text) <= _WINDOW:
        return clean(redact(text), limit)
    kept = redact(text[:_WINDOW])
    # The beginning of a secret that the window cut is not always known as one; so what stands at the end goes, too.
    kept = kept[: max(len(kept) - _MARGIN, kept.rfind(MARK) + len(MARK) if MARK in kept else 0)]
    return clean(kept + "…", limit)


def end(text: str, limit: int) -> str:
    """The last `limit` characters of a text, at most 50,000, secrets redacted before it is cut. Quick for any length."""
    kept = redact(text[-_TAIL:])
    if len(text) > _TAIL:
        kept = kept[_TAIL_MARGIN:]  # the end of a secret that the window cut is not known as one
    return clean(kept)[-limit:]
