"""Lines of the event log: written from what they have in common, they are what each would be by itself."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from oaken_jobs import views
from oaken_jobs.events import event
from oaken_jobs.events.log import line
from oaken_jobs.model import Activity

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"job_id":1', '","job_id":1,"', "\\", "\u2028", "enqueue", "{}"]
)
IDS = st.integers(1, 2**53)
ROWS = st.builds(
    Activity,
    id=IDS,
    at=st.integers(-(10**13), 10**15),
    event=st.sampled_from([*event.PUBLIC, "plugin.event"]),
    verb=st.sampled_from(["enqueue", "claim", "complete", "cancel"]),
    job_id=st.none() | IDS,
    name=st.none() | TEXTS,
    from_state=st.sampled_from([None, "queued", "running"]),
    to_state=st.sampled_from(["queued", "running", "succeeded"]),
    epoch=st.none() | st.integers(0, 9),
    attempt=st.none() | st.integers(0, 9),
    percent=st.none() | st.integers(0, 100),
    actor_kind=st.sampled_from(["user", "agent", "system"]),
    actor_id=TEXTS,
    actor_via=st.sampled_from(["http", "mcp"]),
    workspace=st.none() | TEXTS,
    data=st.sampled_from([None, '{"n":1,"job_id":1}']),
    job_kind=st.none() | TEXTS,
    queue=st.none() | TEXTS,
)


@given(st.lists(ROWS, min_size=1, max_size=6), st.integers(2, 2**53))
def test_a_line_is_the_event_as_it_is_shown_however_many_like_it_were_written_before(
    rows: list[Activity], other: int
) -> None:
    for row in rows:
        for one in (row, row._replace(id=other, at=row.at + 7, job_id=other)):
            assert line(one) == orjson.dumps(views.event(event.of(one))) + b"\n"
