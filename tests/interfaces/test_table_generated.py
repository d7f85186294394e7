"""Generated requests: what the table takes is what the rest of the program reads, and what it refuses has a field."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.facts import pack_task, task_header
from onyxq.core.ids import make_id
from onyxq.core.limits import members
from onyxq.errors import BadRequest
from onyxq.interfaces.http.routes.enqueue import NewTask, NewTasks
from onyxq.operations.checks.runs import check_new_runs
from onyxq.operations.table.enqueue import ENQUEUE, TaskHeader, header_of
from onyxq.operations.table.json_form import arguments
from onyxq.operations.table.operation import plain

IDS = st.integers(0, 63).map(lambda partition: make_id(1_700_000_000_000, partition, 1, 0))
NAMES = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"), min_size=1, max_size=200)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "queue": NAMES,
    "backoff_ms": st.integers(0, 86_400_000),
    "depends": st.lists(IDS, min_size=1, max_size=5, unique=True),
    "expires_ms": st.integers(1, (1 << 48) - 1),
    "format": st.sampled_from(["json", "bytes"]),
    "on_dependency_failed": st.sampled_from(["fail", "cancel", "run"]),
    "priority": st.integers(-(1 << 31), (1 << 31) - 1),
    "retries": st.none() | st.integers(0, 1_000_000),
    "trace": st.just("00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
}
ODD = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()
VALUES = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
HEADERS = st.fixed_dictionaries({"queue": GOOD["queue"]}, optional={n: s for n, s in GOOD.items() if n != "queue"})
ANY_HEADERS = st.dictionaries(st.sampled_from([*members(TaskHeader), "order", "x"]), ODD | VALUES, max_size=4)
FIRST = make_id(1_700_000_000_000, 0, 7, 0)


@given(header=HEADERS, payloads=st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_good_runs_are_taken_as_they_are(header: dict[str, Any], payloads: list[bytes]) -> None:
    """With any number of options; the row that is stored says the same."""
    body = pack_task(header, payloads)
    (run,) = ENQUEUE.decode({"runs": [[FIRST, body]]}).runs
    assert check_new_runs([run], 64) == [len(payloads)]
    assert run.body is body and task_header(body) == (header, len(payloads))
    assert plain(header_of(msgpack.packb(header), "runs[0]")) == header


@given(header=HEADERS, odd=ANY_HEADERS)
def test_what_is_taken_is_read_alike_everywhere(header: dict[str, Any], odd: dict[str, Any]) -> None:
    """Rows are read by another library than the one that checks them; what is refused has a field."""
    packed = msgpack.packb({**header, **odd}, use_bin_type=True, strict_types=False)
    try:
        taken = header_of(packed, "runs[3]")
    except BadRequest as error:
        assert (error.field or "").startswith("runs[3]")
    else:
        assert plain(taken) == msgpack.unpackb(packed)


@given(packed=st.binary(max_size=60))
def test_bytes_that_are_no_header_are_refused_by_field(packed: bytes) -> None:
    """Whatever they are."""
    try:
        taken = header_of(packed, "runs[0]")
    except BadRequest as error:
        assert (error.field or "").startswith("runs[0]")
    else:
        assert plain(taken) == msgpack.unpackb(packed)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(data=JSON_VALUES, priority=st.integers(-(1 << 31), (1 << 31) - 1))
def test_any_json_is_data_and_comes_back(data: Any, priority: int) -> None:
    """As a value of its own, not as a text."""
    (task,) = arguments(NewTasks, {"tasks": [{"queue": "q", "data": data, "priority": priority}]}).tasks
    assert (task.format, task.priority) == ("json", priority) and json.loads(task.data) == data


@given(
    tasks=st.lists(st.dictionaries(st.sampled_from([*members(NewTask), "data_base64", "x"]), JSON_VALUES), max_size=3)
)
def test_tasks_that_do_not_fit_are_refused_by_field(tasks: list[dict[str, Any]]) -> None:
    """Or they are tasks."""
    try:
        taken = arguments(NewTasks, {"tasks": tasks}).tasks
    except BadRequest as error:
        assert (error.field or "").startswith("tasks")
    else:
        assert all(type(one.queue) is str and type(one.data) is bytes for one in taken)
