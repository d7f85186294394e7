"""What is stored for a flow: ids, runs, joins and the record follow from the request alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.facts import partition_of_keys, task_header, unpack_task
from onyxq.core.ids import STRETCH_TASKS, TaskId, ids_of, make_id, ms_of, offset_of, partition_of
from onyxq.core.limits import DEPENDS_MAX, RUN_BYTES_MAX
from onyxq.operations.checks.runs import check_run
from onyxq.operations.flow.flows import state_of
from onyxq.operations.flow.plan import FlowPlan, Record, RecordedRun, check, planned, record_of
from onyxq.operations.flow.requeue import waves
from onyxq.operations.table.flow import MAKE_FLOW, MakeFlow

FLOW = make_id(1_000_000, 3, 77, 5)
PARTITIONS = 8


def asked(*tasks: dict[str, Any], **more: Any) -> MakeFlow:
    """Return a request."""
    return MAKE_FLOW.decode({"id": FLOW, "tasks": list(tasks), **more})


def plan_of(request: MakeFlow, flow_id: TaskId = FLOW) -> FlowPlan:
    """Return what is stored for a request."""
    check(request)
    return planned(request, flow_id, PARTITIONS)


def depends_of(body: bytes) -> list[bytes]:
    """Return the ids on which a run depends."""
    found: list[bytes] = task_header(body)[0].get("depends", [])
    return found


def record_in(plan: FlowPlan) -> Record | None:
    """Return the record as it is read back."""
    return record_of(FLOW, unpack_task(plan.runs[-1].body).payload(0))


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(SIZES, st.booleans())
def test_each_run_follows_what_it_depends_on_and_the_record_follows_all(sizes: list[int], last: bool) -> None:
    """Groups in a row; no id occurs twice, and the record has every task in the order of the request."""
    tasks: list[dict[str, Any]] = []
    before: list[int] = []
    for size in sizes:
        now = list(range(len(tasks), len(tasks) + size))
        tasks += [{"queue": "q", "data": b"%d" % place, "after": before} for place in now]
        before = now
    plan = plan_of(asked(*tasks, **({"on_done": {"queue": "last"}} if last else {})))
    stored: set[bytes] = set()
    for first, body, _ in plan.runs:
        run = unpack_task(body)
        check_run(first, run.count, PARTITIONS, "run")
        assert stored.issuperset(depends_of(body)) and len(depends_of(body)) <= DEPENDS_MAX
        assert stored.isdisjoint(ids_of(first, run.count))
        stored.update(ids_of(first, run.count))
    assert plan.runs[-1].id == FLOW
    record = record_in(plan)
    assert record is not None
    recorded = [one for run in record.runs for one in ids_of(*run.run)]
    assert recorded[: len(tasks)] == plan.ids and len(recorded) == len(tasks) + last
    assert (record.on_done is not None) == last


def test_a_record_depends_on_every_task_through_joins() -> None:
    """Ten thousand tasks are more than a task may depend on; their tree of joins leaves none out."""
    plan = plan_of(asked(*({"queue": "q"} for _ in range(10_000)), on_done={"queue": "last"}))
    header_of = {one: task_header(body)[0] for first, body, _ in plan.runs for one in ids_of(first, 1)}
    reached: set[bytes] = set()
    left = [*depends_of(plan.runs[-1].body)]
    while left:
        one = left.pop()
        reached.add(one)
        left += header_of[one]["depends"] if header_of.get(one, {}).get("joins") else []
    assert reached.issuperset(plan.ids)
    assert header_of[FLOW]["joins"] and not header_of[plan.ids[0]].get("joins")


def test_a_repeat_is_the_same_and_another_request_has_no_id_in_common() -> None:
    """So a repeat stores nothing new, and a changed request cannot mix with the first."""
    one, again = plan_of(asked({"queue": "q"})), plan_of(asked({"queue": "q"}))
    assert one == again
    assert set(one.ids).isdisjoint(plan_of(asked({"queue": "q", "priority": 1})).ids)
    assert set(one.ids).isdisjoint(plan_of(asked({"queue": "q"}), make_id(1_000_000, 3, 77, 6)).ids)


def test_each_task_names_its_flow() -> None:
    """So the page of a task leads to the flow. Joins are no tasks of the flow."""
    plan = plan_of(asked({"queue": "q"}, {"queue": "q", "after": [0]}, on_done={"queue": "last"}))
    assert [task_header(body)[0].get("flow") for _, body, _ in plan.runs] == [FLOW, FLOW, FLOW, None]


def test_times_and_keys_are_in_the_ids() -> None:
    """A delay counts from the flow's id; a task with an ordering key lies in the partition of its key."""
    late, keyed = plan_of(asked({"queue": "q", "delay_ms": 500}, {"queue": "q", "ordering_key": "k"})).ids
    assert ms_of(late) == ms_of(FLOW) + 500
    assert partition_of(keyed) == partition_of_keys("q", "k", PARTITIONS)


def test_large_data_is_cut_into_runs() -> None:
    """A run has a limited number of bytes, and does not cross the border of a stretch."""
    plan = plan_of(asked(*({"queue": "q", "data": bytes(RUN_BYTES_MAX // 3)} for _ in range(7))))
    assert [unpack_task(body).count for _, body, _ in plan.runs] == [3, 3, 1, 1]
    long = plan_of(asked({"queue": "first"}, *({"queue": "q"} for _ in range(STRETCH_TASKS))))
    assert [(offset_of(first), unpack_task(body).count) for first, body, _ in long.runs[:3]] == [
        (0, 1),
        (1, STRETCH_TASKS - 1),
        (0, 1),
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"digest": "0" * 32},
        {"runs": []},
        {"runs": [[make_id(1, 1, 1, 1).hex(), 1, "q", []]]},
        {"runs": [["00", 1, "q", []]]},
        {"runs": [["no id", 1, "q", []]]},
        {"on_done": make_id(1, 1, 1, 1).hex()},
    ],
)
def test_a_forged_record_is_none(changed: dict[str, Any]) -> None:
    """The record of a flow can only name tasks that were made for it."""
    record = plan_of(asked({"queue": "q"})).record
    assert record_of(FLOW, msgspec.json.encode(record)) == record
    assert record_of(FLOW, msgspec.json.encode(msgspec.to_builtins(record) | changed)) is None
    assert record_of(make_id(1, 1, 1, 1), msgspec.json.encode(record)) is None


def test_a_record_that_no_request_can_make_is_none() -> None:
    """Its tasks follow earlier ones only, and it has as many as a flow may have: reading it costs no more."""
    record = plan_of(asked(*[{"queue": "q"}] * 3, {"queue": "q", "after": [0, 2]})).record
    tasks, last = record.runs
    runs = [RecordedRun(tasks.first, 1_000, "q", [])] * 10
    for forged in ([tasks, RecordedRun(last.first, 1, "q", [3])], [last, tasks], [*runs, tasks]):
        assert record_of(FLOW, msgspec.json.encode(msgspec.structs.replace(record, runs=forged))) is None
    assert record_of(FLOW, msgspec.json.encode(msgspec.structs.replace(record, runs=[*runs, last]))) is not None


@pytest.mark.parametrize(
    ("recorded", "counts", "state"),
    [
        ("waiting", {"ready": 2, "waiting": 1}, "waiting"),
        ("waiting", {"claimed": 1, "waiting": 1}, "running"),
        ("waiting", {"completed": 2}, "running"),
        ("completed", {"completed": 1, "purged": 1}, "completed"),
        ("failed", {"failed": 1}, "failed"),
        ("failed", {"ready": 1}, "waiting"),
        ("failed", {"ready": 1, "failed": 1}, "running"),
        ("cancelled", {"claimed": 1, "cancelled": 1}, "cancelled"),
    ],
)
def test_a_state_follows_from_the_record_and_the_tasks(recorded: str, counts: dict[str, int], state: str) -> None:
    """A flow has ended once its record has; it runs again if one of its tasks was requeued."""
    assert state_of(recorded, counts) == state


def test_a_failed_task_is_requeued_after_the_failed_tasks_before_it() -> None:
    """If it was requeued earlier, it could fail again because of them. One leader requeues its tasks in order."""
    ids = [make_id(1_000_000, partition, 78, place) for place, partition in enumerate((3, 3, 3, 3, 5, 3, 3))]
    states = ("failed", "failed", "completed", "failed", "failed", "failed", "failed")
    after = ([], [0], [0], [2], [0, 1], [4], [5])
    tasks = list(zip(ids, states, after, strict=True))
    assert list(waves(tasks)) == [[ids[0], ids[1], ids[3]], [ids[4]], [ids[5], ids[6]]]
