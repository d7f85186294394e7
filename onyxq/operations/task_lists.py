"""Lists of tasks: leaders read their partitions in id order, and the results are merged.

The time of an answer does not grow with the number of tasks: a search ends after a number of rows, and returns the id
that it has reached.  So a page may have fewer tasks than the request wants, or none, and still name the id after which
the next page begins.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import trio

from onyxq.core.ids import TaskId, ids_of, make_id, ms_of, partition_of, runs_of, stretch_of
from onyxq.core.limits import TIME_MS_MAX
from onyxq.core.replica import claimed_bits, pieces_of
from onyxq.node.all_leaders import AllLeaders, Asked
from onyxq.node.node import Node
from onyxq.operations.handlers import Handler, served
from onyxq.operations.table.operation import converted
from onyxq.operations.table.task import LIST_NEXT, LIST_TASKS, ListNext, ListTasks, NextPage, TaskPage
from onyxq.operations.task_reads import Reading, named
from onyxq.store.interface import Piece
from onyxq.store.state_lookup import last_of

UNFINISHED = ("scheduled", "waiting", "ready")
PATIENCE_S = 0.06
"""Time after which a page is returned even if it is not full, in seconds."""
LOOKS_MAX = 4_000
"""Largest number of rows that one search reads."""
VIEW_LOOKS = 40
"""Cost of building the view of a task, as a number of rows read."""
TEXT_LOOKS = 10
"""Cost of looking for a text in the rows about a stretch, as a number of rows read."""
BYTES_PER_LOOK = 16 * 1024
"""Number of bytes whose search for a text costs as much as a row read."""
PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of payloads and results after which a page ends; the last task may exceed them."""
LOOKS_PER_TURN = 250
"""Number of rows after which other tasks of the event loop run."""
ROWS_FIRST, ROWS_MAX = 8, 256
"""Rows of a partition that are read together: first and largest number."""

Place: TypeAlias = tuple[TaskId, bool, int]
"""A step of a search: the id that it reached, whether the task there may match, and the number of rows read."""
Due: TypeAlias = tuple[int, bytes]
"""A due time in ms since the epoch, and an id: the order of tasks that are due later."""
Found: TypeAlias = dict[str, Any]
"""Answer of a leader: ``found`` in id order, and ``reached``, the last id searched (None at the end)."""


class Listing:
    """Serves ``list`` of one node, and searches for others."""

    def __init__(self, node: Node, reading: Reading, leaders: AllLeaders) -> None:
        self._node = node
        self._reading = reading
        self._listed = leaders.question(LIST_TASKS.name, self._look)

    async def page(self, args: ListTasks) -> TaskPage:
        """Return a page of tasks in id order."""
        wanted = msgspec.structs.asdict(args)
        tasks, after = await gather(self._listed, wanted | {"after": _first_after(wanted)})
        return converted(TaskPage, {"tasks": tasks, "after": after})

    async def _look(self, args: dict[str, Any], partitions: Sequence[int]) -> Found:
        """Search tasks after ``after`` in partitions led from here."""
        wanted = msgspec.structs.asdict(LIST_TASKS.decode(args))

        def take(task_id: TaskId) -> dict[str, Any] | None:
            view = self._reading.view_here(task_id)
            if view is None or wanted["state"] not in (None, view["state"]):
                return None
            return view if wanted["where"] is None or says(view, wanted["where"]) else None

        places = _within(merged(self._places, wanted, partitions), wanted)
        return await look(places, take, limit=wanted["limit"])

    async def look_unfinished(self, args: dict[str, Any], partitions: Sequence[int]) -> Found:
        """Search ids of tasks that may be in an unfinished state, in partitions led from here."""
        places = merged(self._places, args, partitions)
        return await look(places, lambda task_id: task_id, limit=args["limit"], cost=0)

    def _places(self, partition: int, after: bytes, wanted: dict[str, Any]) -> Iterable[Place]:
        queue, state = wanted["queue"], wanted["state"]
        if state == "claimed":
            return self._claimed(partition, after, wanted)
        if state == "failed":  # They have an index of their own.
            find = self._node.operations.dead_letters.find
            found = find(partition, queue=queue, after=after, newest_first=wanted["newest_first"])
            return ((one, True, 1) for one in found)
        if not self._any(partition, queue, state):
            return ()
        return self._stored(partition, after, wanted)

    def _any(self, partition: int, queue: str | None, state: str | None) -> bool:
        """Return whether there may be tasks of a queue in a state, by their counts."""
        if queue is None and state is None:
            return True
        store = self._node.store
        counts = store.counts(partition, queue)
        if partition in store.unindexed():
            return True
        for numbers in counts.values():
            found = named([*numbers, 0])
            # What has just come due counts as scheduled for a moment; what waits behind others of its key
            # and is not due yet is shown as scheduled.
            found["ready"] += found["scheduled"]
            found["scheduled"] += found["waiting"]
            if found["total" if state is None else state]:
                return True
        return False

    def _stored(self, partition: int, after: bytes, wanted: dict[str, Any]) -> Iterator[Place]:
        node, rows, (queue, state) = self._node, ROWS_FIRST, (wanted["queue"], wanted["state"])
        down, ids = wanted["newest_first"], _in_reverse if wanted["newest_first"] else _in
        texts = _written(wanted["where"]) if wanted.get("where") else ()
        while True:
            found = node.store.look(
                partition,
                queue=queue,
                state=state,
                now_ms=node.wall_ms(),
                after=after,
                limit=rows,
                newest_first=down,
            )
            looked = 0
            for stretch, bits in found:
                if state in UNFINISHED and bits:
                    bits &= ~claimed_bits(pieces_of(node.replica, stretch))
                looked += 1
                if bits and texts:
                    may_say, size = node.store.may_say(stretch, texts)
                    looked += TEXT_LOOKS + size // BYTES_PER_LOOK
                    bits = bits if may_say else 0
                if bits:
                    yield from ids(stretch, bits, looked)
                    looked = 0
                after = stretch if down else last_of(stretch)
                if looked >= TEXT_LOOKS:
                    yield TaskId(after), False, looked
                    looked = 0
            if found:
                yield TaskId(after), False, looked
            if not found:
                return
            rows = min(2 * rows, ROWS_MAX)

    def _claimed(self, partition: int, after: bytes, wanted: dict[str, Any]) -> Iterator[Place]:
        store, claims, queue = self._node.store, self._node.replica.claims.get(partition), wanted["queue"]
        down, ids = wanted["newest_first"], _in_reverse if wanted["newest_first"] else _in
        for stretch in sorted((TaskId(one) for one in claims or ()), reverse=down):
            if after and (stretch >= after if down else last_of(stretch) <= after):
                continue
            bits = claimed_bits(pieces_of(self._node.replica, stretch)) & ~store.finished_bits(stretch)
            for task_id, *_ in ids(stretch, bits, 1):
                if not after or (task_id < after if down else task_id > after):
                    view = self._reading.view_here(task_id) if queue is not None else None
                    yield task_id, view is None or view["queue"] == queue, 1
            yield stretch if down else last_of(stretch), False, 1


async def gather(asked: Asked, wanted: dict[str, Any]) -> tuple[list[Any], TaskId | None]:
    """Return up to ``limit`` tasks of all leaders, and the id up to which the result is complete."""
    found: list[Any] = []
    down, first = (True, max) if wanted["newest_first"] else (False, min)
    after, until = wanted["after"], trio.current_time() + PATIENCE_S
    while True:
        left = wanted["limit"] - len(found)
        parts = await asked.ask(wanted | {"after": after, "limit": left})
        reached = first((part["reached"] for part in parts if part["reached"] is not None), default=None)
        ours = [one for part in parts for one in part["found"]]
        if reached is not None:
            ours = [one for one in ours if (_id_of(one) >= reached if down else _id_of(one) <= reached)]
        found += sorted(ours, key=_id_of, reverse=down)[:left]
        end = _end_of_page(found)
        if end == wanted["limit"] or end < len(found):
            return found[:end], _id_of(found[end - 1])
        if reached is None or trio.current_time() >= until:
            return found, reached
        after = reached


def _first_after(wanted: dict[str, Any]) -> bytes | None:
    """Return the id after which a list begins: that of the request, or the last one before its times."""
    since_ms, until_ms, down = wanted["since_ms"], wanted["until_ms"], wanted["newest_first"]
    if wanted["after"] is not None or (until_ms if down else since_ms) is None:
        found: bytes | None = wanted["after"]
        return found
    return make_id(min(until_ms + 1, TIME_MS_MAX), 0, 0, 0) if down else make_id(since_ms, 0, 0, 0)


def _within(places: Iterator[Place], wanted: dict[str, Any]) -> Iterator[Place]:
    """Yield places until the end of the times of a request."""
    down, since_ms, until_ms = wanted["newest_first"], wanted["since_ms"] or 0, wanted["until_ms"]
    for place in places:
        ms = ms_of(place[0])
        if ms < since_ms if down else until_ms is not None and ms > until_ms:
            return
        yield place


def says(view: dict[str, Any], text: str) -> bool:
    """Return whether a text is in a task's data, keys, errors or kept tracebacks."""
    of_claims = (one[name] for one in view["claims"] for name in ("error", "traceback"))
    texts = (view["error"], view["ordering_key"], view["unique_key"], *of_claims)
    return any(one in view["data"] for one in _written(text)) or any(text in one for one in texts if one)


def _written(text: str) -> tuple[bytes, ...]:
    """Return a text as it may be stored: plain, and as JSON with escapes."""
    return tuple(dict.fromkeys((text.encode(errors="replace"), json.dumps(text)[1:-1].encode())))


def merged(
    places: Callable[[int, bytes, dict[str, Any]], Iterable[Place]], wanted: dict[str, Any], partitions: Sequence[int]
) -> Iterator[Place]:
    """Yield the places of partitions led from here, in id order."""
    after = wanted["after"] or b""
    starts = (places(number, start_of(number, after), wanted) for number in partitions)
    return heapq.merge(*starts, reverse=wanted["newest_first"])


async def look(places: Iterator[Place], take: Callable[[TaskId], Any], *, limit: int, cost: int = VIEW_LOOKS) -> Found:
    """Take up to ``limit`` of the tasks that may match.

    ``cost`` is the cost of one call of ``take``, as a number of rows read.
    """
    found: list[Any] = []
    looked = turn = size = 0
    for task_id, wanted, rows in places:
        looked += rows
        if wanted:
            looked += cost
            if (one := take(task_id)) is not None:
                found.append(one)
                size += _bytes_of(one)
        if len(found) == limit or looked >= LOOKS_MAX or size >= PAGE_BYTES_MAX:
            return {"found": found, "reached": task_id}
        if looked >= turn + LOOKS_PER_TURN:
            turn = looked
            await trio.lowlevel.checkpoint()
    return {"found": found, "reached": None}


def _in(stretch: TaskId, bits: int, rows: int) -> Iterator[Place]:
    for run in runs_of(stretch, bits):
        for task_id in ids_of(*run):
            yield task_id, True, rows
            rows = 1


def _in_reverse(stretch: TaskId, bits: int, rows: int) -> Iterator[Place]:
    found = [task_id for task_id, *_ in _in(stretch, bits, rows)]
    return ((task_id, True, 1 if place else rows) for place, task_id in enumerate(reversed(found)))


def _bytes_of(found: Any) -> int:
    """Return the bytes that a task adds to an answer besides its small fields."""
    if not isinstance(found, dict):
        return 0
    tracebacks = sum(len(claim["traceback"] or "") for claim in found.get("claims", ()))
    return tracebacks + sum(len(found[name]) for name in ("data", "result") if found.get(name) is not None)


def _end_of_page(found: Sequence[Any]) -> int:
    """Return the length of the page: everything found, or up to the task that fills it."""
    size = 0
    for number, one in enumerate(found, 1):
        size += _bytes_of(one)
        if size >= PAGE_BYTES_MAX:
            return number
    return len(found)


def _id_of(found: Any) -> TaskId:
    return TaskId(bytes(found["id"] if isinstance(found, dict) else found))


def start_of(partition: int, after: bytes) -> bytes:
    """Return ``after`` as a start for another partition, in either order of ids.

    The partition's tasks with greater ids come later in id order, and those with smaller ids come earlier.
    """
    if not after or partition_of(after) == partition:
        return after
    rest = b"\xff" if partition < partition_of(after) else b"\0"
    return after[:6] + partition.to_bytes(2, "big") + rest * (len(after) - 8)


# --- the next tasks of a queue


class NextTasks:
    """Serves ``list.next`` of one node, and searches for others."""

    def __init__(self, node: Node, reading: Reading, leaders: AllLeaders) -> None:
        self._node = node
        self._reading = reading
        self._asked = leaders.question(LIST_NEXT.name, self._look)

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return served(LIST_NEXT, self.page)

    async def page(self, args: ListNext) -> NextPage:
        """Return ready tasks, and a page of those that are due later."""
        parts = await self._asked.ask(msgspec.structs.asdict(args))
        ready = [one for part in parts for one in part["ready"]]
        reached = min((tuple(part["reached"]) for part in parts if part["reached"] is not None), default=None)
        later = sorted((one for part in parts for one in part["later"]), key=_place)
        if reached is not None:
            later = [one for one in later if _place(one) <= reached]
        if len(later) > args.limit:
            later = later[: args.limit]
            reached = _place(later[-1])
        found = {
            "ready": sorted(ready, key=lambda one: (-one["priority"], *_place(one)))[: args.limit],
            "later": later,
            "after_ms": reached[0] if reached else None,
            "after": reached[1] if reached else None,
        }
        return converted(NextPage, found)

    async def _look(self, args: dict[str, Any], partitions: Sequence[int]) -> dict[str, Any]:
        """Search partitions led from here; ``reached`` is the last due time and id searched, None at the end."""
        wanted = LIST_NEXT.decode(args)
        ready = [] if wanted.after is not None else self._ready(wanted, partitions)
        start: Due = (wanted.after_ms or 0, wanted.after or b"")
        texts = () if wanted.where is None else _written(wanted.where)
        later: list[dict[str, Any]] = []
        pieces = heapq.merge(*(self._later(number, start) for number in partitions), key=_piece_place)
        looked = turn = 0
        for piece in pieces:
            looked += 1
            may_fit = piece.queue == wanted.queue
            if may_fit and texts:
                may_fit, size = self._node.store.may_say(stretch_of(piece.first), texts)
                looked += TEXT_LOOKS + size // BYTES_PER_LOOK
            for view in self._views(piece, wanted) if may_fit else ():
                looked += VIEW_LOOKS
                if _place(view) > start:
                    later.append(view)
                if len(later) == wanted.limit:
                    return {"ready": ready, "later": later, "reached": _place(view)}
            if looked >= LOOKS_MAX:
                return {"ready": ready, "later": later, "reached": _piece_place(piece)}
            if looked >= turn + LOOKS_PER_TURN:
                turn = looked
                await trio.lowlevel.checkpoint()
        return {"ready": ready, "later": later, "reached": None}

    def _ready(self, wanted: ListNext, partitions: Sequence[int]) -> list[dict[str, Any]]:
        """Return the ready tasks in the order in which they are granted."""
        store, found = self._node.store, []
        pieces = [store.ready(number, wanted.queue, limit=wanted.limit) for number in partitions]
        for piece in heapq.merge(*pieces, key=lambda one: one.sort_key):
            found += [view for view in self._views(piece, wanted) if view["state"] == "ready"]
            if len(found) >= wanted.limit:
                break
        return found[: wanted.limit]

    def _later(self, partition: int, start: Due) -> Iterator[Piece]:
        """Yield the pieces of a partition that may have tasks after ``start``, by due time."""
        last, rows = (start[0], b""), ROWS_FIRST
        while True:
            found = self._node.store.due(partition, last[0], TIME_MS_MAX, limit=rows)
            new = [piece for piece in found if _piece_place(piece) > last]
            yield from (piece for piece in new if (piece.due_ms, last_of(stretch_of(piece.first))) > start)
            if len(found) < rows:
                return
            # Many pieces may have the same due time. Then more rows are read from that time on.
            rows = min(2 * rows, ROWS_MAX) if found[-1].due_ms > last[0] else 2 * rows
            last = _piece_place(found[-1])

    def _views(self, piece: Piece, wanted: ListNext) -> Iterator[dict[str, Any]]:
        for run in runs_of(stretch_of(piece.first), piece.bits):
            for task_id in ids_of(*run):
                view = self._reading.view_here(task_id)
                is_open = view is not None and view["state"] in ("ready", "scheduled")
                if view is not None and is_open and (wanted.where is None or says(view, wanted.where)):
                    yield view


def _place(view: dict[str, Any]) -> Due:
    return view["at_ms"], view["id"]


def _piece_place(piece: Piece) -> Due:
    return piece.due_ms, piece.first
