"""The task store's state in the replica, and the steps by which its entries change it.

The extension's state is a map:

* ``tasks``: part of the ids -> id -> task,
* ``groups``: name -> its tasks in the order of the times at which they are available,
* ``numbers``: the highest id so far, the bytes of all tasks, and the limits of bytes for one task and for all,
* ``answers``: request number -> outcome, for the submitters. They cover the last record that had requests.

An id is the position of the record, shifted, plus a count.  It is higher than all before,
and no restart or snapshot brings one back.  A change or a claim creates a new task under a new id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from pyrsistent import PMap, pmap

from onyxq.core.entry import Stamp
from onyxq.core.extensions import state_of, with_state
from onyxq.core.limits import GROUP_CHARACTERS_MAX, INT_MAX, OWNER_MAX, OWNER_MIN, TIME_MS_MAX
from onyxq.core.replica import Replica
from onyxq.core.taskstore import order

NAME = "taskstore"
TASK_BYTES_MAX = 64 << 10
BYTES_MAX = 64 << 20
TASK_OVERHEAD_BYTES = 128
"""Bytes counted for each task in addition to its group and data."""
UNITS: Mapping[str, int] = {"ms": 1, "ns": 1_000_000}
"""Units of time that clients may use -> how many of them make a millisecond."""
ID_SHIFT = 16
"""Bits that count the tasks of one record.

A record has room for fewer tasks than these bits can count.  If there were more, their ids would continue
in the range of the next position.
"""
PART_SHIFT = ID_SHIFT + 8
"""Bits of an id within one part of the map of tasks: parts keep maps small, so changes stay fast."""

_SEED, _ONE, _TWO, _BITS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, (1 << 64) - 1


class Task(NamedTuple):
    """An immutable task; ``at_ms``: when it is available to all clients. Until then it belongs to its owner."""

    group: str
    at_ms: int
    owner: int
    data: str


Row: TypeAlias = tuple[str, int, int, str]
"""A `Task` as the state holds it."""
Numbered: TypeAlias = tuple[int, Row]


class Refusal(NamedTuple):
    """Why a request changed nothing.

    ``changes``, ``deletes`` and ``depends`` are ids that do not exist.  ``owned`` are ids that
    another client owns.  ``bugs`` describes mistakes in the request itself.
    """

    changes: tuple[int, ...] = ()
    deletes: tuple[int, ...] = ()
    depends: tuple[int, ...] = ()
    owned: tuple[int, ...] = ()
    bugs: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The refusal as a verdict."""
        counts = [f"{len(found)} {name}" for name, found in zip(self._fields[:4], self[:4], strict=True) if found]
        return f"refused: {', '.join([*counts, *self.bugs])}"


Answer: TypeAlias = tuple[tuple[Numbered, ...], tuple[Any, ...]]
"""New tasks with their ids, and a `Refusal`; one of them is empty."""

_NOBODY: PMap[Any, Any] = pmap()


class Store(NamedTuple):
    """The state without answers, while one entry is applied."""

    tasks: PMap[int, PMap[int, Row]] = _NOBODY
    groups: PMap[str, order.Order] = _NOBODY
    last: int = 0
    size: int = 0
    limits: tuple[int, int] = (TASK_BYTES_MAX, BYTES_MAX)

    def get(self, number: int) -> Row | None:
        """Return the task of an id, or None."""
        part = self.tasks.get(number >> PART_SHIFT)
        return None if part is None else part.get(number)

    def available(self, group: str, now_ms: int) -> int:
        """Return how many tasks of a group may be claimed."""
        return order.count_until(self.groups.get(group, order.EMPTY), now_ms)

    def members(self, group: str) -> Iterable[int]:
        """Return the ids of a group's tasks, in the order of the times at which they are available."""
        return (number for _, number in order.pairs(self.groups.get(group, order.EMPTY)))


def read(replica: Replica) -> Store:
    """Return the store in the replica."""
    state = state_of(replica, NAME)
    if not state:
        return Store()
    return Store(state["tasks"], state["groups"], *state["numbers"])


def written(replica: Replica, store: Store, stamp: Stamp, request: int, answer: Answer) -> Replica:
    """Return the replica with the store and with the answer to a request."""
    position, answers = _answers(replica)
    if position != stamp.position:
        answers = _NOBODY
    return _with(replica, store, (stamp.position, answers.set(request, answer)))


def kept(replica: Replica, store: Store) -> Replica:
    """Return the replica with the store, and answers unchanged."""
    return _with(replica, store, _answers(replica))


def _answers(replica: Replica) -> tuple[int, PMap[int, Answer]]:
    found: tuple[int, PMap[int, Answer]] = state_of(replica, NAME).get("answers", (0, _NOBODY))
    return found


def _with(replica: Replica, store: Store, answers: tuple[int, PMap[int, Answer]]) -> Replica:
    new = {
        "tasks": store.tasks,
        "groups": store.groups,
        "numbers": (store.last, store.size, store.limits),
        "answers": answers,
    }
    return with_state(replica, NAME, pmap(new))


def answer_of(replica: Replica, position: int, request: int) -> Answer | None:
    """Return the outcome of a request, from the replica directly after the record at ``position``; None if unknown."""
    at, answers = _answers(replica)
    return answers.get(request) if at == position else None


# --- steps


def size_of(task: Row) -> int:
    """Return the bytes that count for a task."""
    return TASK_OVERHEAD_BYTES + len(task[0].encode()) + len(task[3].encode())


def time_of(at_ms: int, now_ms: int) -> int:
    """Return a request's time in ms since the epoch.

    A positive number is such a time; other numbers are negated delays from now.
    """
    return at_ms if at_ms > 0 else now_ms - at_ms


def with_tasks(store: Store, tasks: Iterable[Row], stamp: Stamp) -> tuple[Store, tuple[Numbered, ...]]:
    """Return the store with new tasks, and these tasks with their ids."""
    made: list[Numbered] = []
    for number, task in enumerate(tasks, start=next_id(store, stamp)):
        store = _put(store, number, task)
        made.append((number, task))
    return store, tuple(made)


def without(store: Store, number: int) -> Store:
    """Return the store without a task that it contains."""
    tasks, groups, last, size, limits = store
    key = number >> PART_SHIFT
    part = tasks[key]
    task = part[number]
    part, rest = part.remove(number), order.removed(groups[task[0]], (task[1], number))
    tasks = tasks.set(key, part) if part else tasks.remove(key)
    groups = groups.set(task[0], rest) if rest else groups.remove(task[0])
    return Store(tasks, groups, last, size - size_of(task), limits)


def _put(store: Store, number: int, task: Row) -> Store:
    tasks, groups, _, size, limits = store
    key = number >> PART_SHIFT
    tasks = tasks.set(key, tasks.get(key, _NOBODY).set(number, task))
    groups = groups.set(task[0], order.added(groups.get(task[0], order.EMPTY), (task[1], number)))
    return Store(tasks, groups, number, size + size_of(task), limits)


def next_id(store: Store, stamp: Stamp) -> int:
    """Return the id of the next new task."""
    return max(store.last + 1, stamp.position << ID_SHIFT)


def ids_left(store: Store, stamp: Stamp, count: int) -> bool:
    """Return whether there are ids for ``count`` new tasks."""
    return next_id(store, stamp) + count <= INT_MAX


def wrong_task(task: Row, limits: tuple[int, int]) -> str:
    """Return why a task cannot be stored, in words, or an empty string."""
    group, at_ms, owner, data = task
    if not 0 < len(group) <= GROUP_CHARACTERS_MAX:
        return f"its group must have 1 to {GROUP_CHARACTERS_MAX} characters, not {len(group)}"
    if not 0 <= at_ms <= TIME_MS_MAX:
        return f"its time must be at most {TIME_MS_MAX} ms since the epoch, not {at_ms}"
    if not OWNER_MIN <= owner <= OWNER_MAX:
        return f"its owner must be {OWNER_MIN} to {OWNER_MAX}"
    if len(data) > limits[0] or len(data.encode()) > limits[0]:
        return f"its data may have {limits[0]} bytes, not {len(data.encode())}"
    return ""


def too_full(before: Store, after: Store) -> str:
    """Return why the store cannot take an addition, in words, or an empty string.

    A change that shrinks the store is always taken.
    """
    if after.size <= max(before.size, after.limits[1]):
        return ""
    return f"{FULL}: it would hold {after.size} bytes of {after.limits[1]}"


FULL = "the task store is full"


def chosen(seed: int, count: int) -> int:
    """Return a number below ``count`` that depends on the seed alone, evenly spread (splitmix64).

    So it is the same on every peer.
    """
    mixed = (seed * _SEED + _SEED) & _BITS
    mixed = ((mixed ^ (mixed >> 30)) * _ONE) & _BITS
    mixed = ((mixed ^ (mixed >> 27)) * _TWO) & _BITS
    return ((mixed ^ (mixed >> 31)) * count) >> 64
