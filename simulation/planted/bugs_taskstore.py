"""Planted bugs of the task store: its answers and its ids."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.entry import Stamp
from onyxq.core.replica import Replica
from onyxq.core.taskstore.state import ID_SHIFT, Answer, Refusal, Row, Store, _answers
from onyxq.core.taskstore.update import Args
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead

_Judge = Callable[[Store, Args, int, Stamp], tuple[list[Row], Refusal | None]]
_Written = Callable[[Replica, Store, Stamp, int, Answer], Replica]


def _excused(reason: str) -> Fault:
    """Return the fault that ignores one field of a refusal."""

    def fault(original: _Judge) -> _Judge:
        def judged(store: Store, args: Args, now_ms: int, stamp: Stamp) -> tuple[list[Row], Refusal | None]:
            tasks, refusal = original(store, args, now_ms, stamp)
            left = refusal._replace(**{reason: ()}) if refusal is not None else ()
            return tasks, left if any(left) else None  # type: ignore[return-value]

        return judged

    return fault


def _first_answer_for_all(original: _Written) -> _Written:
    def written(replica: Replica, store: Store, stamp: Stamp, request: int, answer: Answer) -> Replica:
        position, answers = _answers(replica)
        earlier = answers.values() if position == stamp.position else ()
        return original(replica, store, stamp, request, min(earlier, default=answer))

    return written


def _a_minute_early(original: Callable[[Store, str, int], int]) -> Callable[[Store, str, int], int]:
    return lambda store, group, now_ms: original(store, group, now_ms + 60_000)


def _first_of_the_record(store: Store, stamp: Stamp) -> int:
    return stamp.position << ID_SHIFT


TASKSTORE_BUGS: tuple[Planted, ...] = (
    Planted(
        "each entry of a record reuses the ids of the record",
        "onyxq.core.taskstore.state:next_id",
        instead(_first_of_the_record),
        "a new task overwrites another of the same record",
        "stored_tasks",
    ),
    Planted(
        "an update does not check its dependencies",
        "onyxq.core.taskstore.update:_judged",
        _excused("depends"),
        "an update applies although another client deleted a task on which it depends",
        "stored_tasks",
        quick=2,
    ),
    Planted(
        "tasks of other clients can be changed",
        "onyxq.core.taskstore.update:_judged",
        _excused("owned"),
        "a lease does not protect its task",
        "stored_tasks",
    ),
    Planted(
        "a claim takes a task that is not available",
        "onyxq.core.taskstore.state:Store.available",
        _a_minute_early,
        "two clients have one task",
        "stored_tasks",
    ),
    Planted(
        "a request gets the answer of an earlier one",
        "onyxq.core.taskstore.state:written",
        _first_answer_for_all,
        "a client works on a task that another client claimed",
        "stored_tasks",
    ),
)
