"""Whether a payload may be enqueued: its kind is taken, JSON readers can keep it, and it fits its kind."""

from __future__ import annotations

from oaken_jobs import jsontext
from oaken_jobs.errors import InvalidRequest, PayloadInvalid
from oaken_jobs.kinds import Rules
from oaken_jobs.model import Json


def checked(rules: Rules, kind: str, payload: Json) -> tuple[str, str | None]:
    """The payload as JSON text, and the hash of the schema that it was checked against, if there is one.

    Raises `InvalidRequest` for a kind that is not taken, `PayloadInvalid` and `TooLarge` for the payload.
    """
    known = rules.kinds.get(kind)
    if known is None and rules.unknown_kinds == "reject":
        raise InvalidRequest(
            f"kind {kind!r} is not known here. Known are {', '.join(sorted(rules.kinds)) or 'none'}; "
            'others are taken where [jobs] unknown_kinds is "accept".'
        )
    text = jsontext.dump(payload, max_bytes=rules.max_payload_bytes, setting="[jobs] max_payload_bytes")
    schema = known.payload_schema if known else None
    if schema is not None and (problems := schema.problems(payload)):
        told = "; ".join(f"{p['path']} breaks {p['rule']}: {p['message']}" for p in problems)
        raise PayloadInvalid(f"The payload does not fit the schema of {kind}: {told}.", errors=problems)
    return text, schema.hash if schema else None
