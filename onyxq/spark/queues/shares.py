"""The output of one writer of a batch: tasks gathered into runs, and prepared piece by piece (design: jobs on Spark).

Without Spark, so that a simulation writes batches as executors do. A `Share` takes rows, makes their ids
(`onyxq.spark.lineage`) and returns full pieces to be sent. Clients see none of them before the batch is committed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from onyxq.client.enqueues import check_payloads, cut_payloads
from onyxq.client.policy import Policy
from onyxq.core.errors import BadRequest, TooLarge
from onyxq.core.facts import pack_task, partition_of_keys
from onyxq.core.ids import ID_BYTES, STRETCH_TASKS, TaskId
from onyxq.core.limits import NAME_CHARACTERS_MAX, TRANSACTION_BYTES_MAX
from onyxq.jobs.values import Unfit, called, to_json, unpack
from onyxq.spark.lineage import PREFIX_BYTES, made_prefix
from onyxq.spark.queues.options import QueueOutput

PIECE_TASKS = 10_000
PIECE_BYTES = 2 * 1024 * 1024
"""Maximum payload bytes of a piece, with `PIECE_TASKS` tasks, unless it has a single task."""
TASK_BYTES_MAX = TRANSACTION_BYTES_MAX - (64 << 10)
"""Largest task of a job's output: the rest of a transaction is for the header of the task."""
BLOCK_ROWS = 4_096
OLD_MS = 300_000
"""Age beyond which a lineage's time is replaced by the present, in ms: new tasks must not have a purged time."""
_BIN = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""First byte of packed bytes -> offset of their content."""

Piece = list[list[Any]]
"""Runs, ``[first id, body]``."""


class Share:
    """Rows on their way to queues."""

    def __init__(self, *, partitions: int, now_ms: int, random_64: Callable[[], int]) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self._maker = random_64().to_bytes(8, "big")
        self._own = 0
        """Counter of rows without lineage."""
        self._groups: dict[tuple[QueueOutput, str, bytes, bytes, str | None], list[tuple[bytes, bytes]]] = {}
        """(output, its name, prefix of lineages, path, ordering key) -> counters and payloads."""
        self._tasks = self._size = 0
        self.rows = 0

    def has_room(self, payload: bytes) -> bool:
        """Return whether a task fits into the piece.

        A single task always does.
        """
        return self._tasks < PIECE_TASKS and (self._size + len(payload) <= PIECE_BYTES or not self._tasks)

    def add(
        self,
        output: QueueOutput,
        payload: bytes,
        *,
        lineage: bytes | None = None,
        name: str = "",
        key: str | None = None,
    ) -> None:
        """Add a task for an output.

        ``name``: of the output, if there are several; ``key``: its ordering key.
        """
        if lineage is None:
            lineage = self._own_lineage()
        elif len(lineage) < ID_BYTES:
            raise BadRequest(f"a lineage has {ID_BYTES} bytes or more, not {len(lineage)}", field="lineage")
        group = output, name, lineage[:PREFIX_BYTES], lineage[ID_BYTES:], key
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = []
        found.append((lineage[PREFIX_BYTES:ID_BYTES], payload))
        self._tasks += 1
        self._size += len(payload)

    def _own_lineage(self) -> bytes:
        """Return a lineage for a row without one.

        They are consecutive in blocks. Each block goes to one partition.
        """
        block, counter = divmod(self._own, BLOCK_ROWS)
        self._own += 1
        return bytes(4) + block.to_bytes(4, "big") + self._maker + counter.to_bytes(4, "big")

    def take(self) -> Piece:
        """Return the runs of all tasks that were added since the last piece."""
        groups, self._groups = self._groups, {}
        self.rows += self._tasks
        self._tasks = self._size = 0
        return [run for group, rows in groups.items() for run in self._runs(group, rows)]

    def _runs(
        self, group: tuple[QueueOutput, str, bytes, bytes, str | None], rows: list[tuple[bytes, bytes]]
    ) -> Iterator[list[Any]]:
        output, name, prefix, path, key = group
        rows.sort(key=_counter)
        made = self._prefix(output, name, prefix, path, key)
        counters, payloads = zip(*rows, strict=True)
        numbers = struct.unpack(f">{len(rows)}I", b"".join(counters))
        if len(set(numbers)) < len(numbers):
            raise BadRequest(
                "two rows have the same lineage, and would be one task",
                field="lineage",
                hint="Write rows that were multiplied without the column lineage.",
            )
        check_payloads(payloads)
        policy = Policy(output.queue, output.priority, format=output.format, ordering_key=key)
        policy.check(own=output.own)
        header = policy.header()
        cuts = _cuts(numbers, payloads) if key is None else ((place, place + 1) for place in range(len(rows)))
        for start, end in cuts:
            yield [TaskId(made + counters[start]), pack_task(header, payloads[start:end])]

    def _prefix(self, output: QueueOutput, name: str, prefix: bytes, path: bytes, key: str | None) -> bytes:
        there = None if key is None else partition_of_keys(output.queue, key, self._partitions)
        time_ms = int.from_bytes(prefix[:6], "big")
        if time_ms < self._now_ms - OLD_MS:
            time_ms = self._now_ms
        lineage = prefix + bytes(4) + path
        return made_prefix(
            lineage, name, time_ms=time_ms + output.delay_ms, partitions=self._partitions, partition=there
        )


def _cuts(numbers: Sequence[int], payloads: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each run: consecutive numbers of one stretch, limited by bytes."""
    start = 0
    for end in _borders(numbers):
        for begin, stop in cut_payloads(payloads[start:end]):
            yield start + begin, start + stop
        start = end


def _borders(numbers: Sequence[int]) -> Iterator[int]:
    """Yield the indices at which consecutive numbers of one stretch end."""
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first == count - 1:
        yield from range(STRETCH_TASKS - first % STRETCH_TASKS, count, STRETCH_TASKS)
    else:
        for place in range(1, count):
            if numbers[place] != numbers[place - 1] + 1 or numbers[place] % STRETCH_TASKS == 0:
                yield place
    yield count


def _counter(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def fitting_task(output: QueueOutput, packed: bytes, name: str) -> tuple[QueueOutput, bytes, str | None]:
    """Return output, payload and ordering key of a segment's task, as `task_of`; raises `TooLarge`."""
    found = task_of(output, packed, name)
    if len(found[1]) > TASK_BYTES_MAX:
        raise TooLarge(f"output {name}: {len(found[1])} bytes in one task; at most {TASK_BYTES_MAX}", field="payload")
    return found


def task_of(output: QueueOutput, packed: bytes, name: str) -> tuple[QueueOutput, bytes, str | None]:
    """Return output, payload and ordering key of a segment's task.

    Bytes stay bytes, anything else becomes JSON.
    """
    start = _BIN.get(packed[0]) if packed else None
    if start is not None and output.ordering_key is None:
        return output, packed[start:], None
    key = None
    value = unpack(packed) if output.ordering_key is not None or start is not None else None
    if output.ordering_key is not None:
        found = value.get(output.ordering_key) if isinstance(value, dict) else None
        if found is None:
            raise BadRequest(
                f"output {name}: a segment has no field {output.ordering_key!r}, its ordering key", field="ordering_key"
            )
        if type(found) not in (str, int):
            what = f"{output.ordering_key}: an ordering key must be a string or an integer"
            raise BadRequest(f"output {name}: {what}, not the {called(found)} {found!r:.60}", field="ordering_key")
        key = str(found)
        if not 1 <= len(key) <= NAME_CHARACTERS_MAX:
            what = f"{output.ordering_key}: an ordering key must have 1 to {NAME_CHARACTERS_MAX} characters"
            raise BadRequest(f"output {name}: {what}, not {len(key)}", field="ordering_key")
    if isinstance(value, bytes):
        return output, value, key
    try:
        text = to_json(packed)
    except Unfit as error:
        raise BadRequest(f"output {name}: {error.message}", field="payload") from None
    return output.as_json, text.encode(), key
