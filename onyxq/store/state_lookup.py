"""The reading half of the store for lists: which tasks may be in a state.

It reads one record of a stretch and the heads of its task rows, but no payload.  So tasks that
do not match are skipped quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import CANCELLED, COMPLETED, TASK
from onyxq.core.ids import STRETCH_TASKS, TaskId, id_at, mask_of, ms_of, offset_of, stretch_of
from onyxq.store.index.facets import free_bits
from onyxq.store.index.heads import task_head
from onyxq.store.index.stretches import Owner, Stretch, groups
from onyxq.store.key_reads import RuledReads
from onyxq.store.tables import END, within, within_down


class FindingReads(RuledReads):
    """The reading method of `onyxq.store.interface.Store` about states."""

    def look(
        self,
        partition: int,
        *,
        queue: str | None,
        state: str | None,
        now_ms: int,
        after: bytes = b"",
        limit: int = 100,
        newest_first: bool = False,
    ) -> list[tuple[TaskId, int]]:
        """Return stretches with tasks after ``after``, in id order, each with a mask of tasks.

        With ``newest_first`` the order is reversed: stretches with tasks before ``after``, the last one first.

        The mask holds the tasks of a queue (None: of all) that may be in ``state``. Claims are not
        considered. About ``limit`` task rows are read. Raises `Corrupt`.
        """
        out: list[tuple[TaskId, int]] = []
        record: Stretch | None = None
        any_of = False
        for key, value in self._rows_from(partition, after, newest_first=newest_first):
            stretch_id = stretch_of(key[3:])
            if record is None or record.key[7:] != stretch_id:
                if limit <= 0:
                    break
                record = self._stretch(stretch_id)
                out.append((stretch_id, 0))
                any_of = not self.hides(stretch_id) and any_may_be(record, state, now_ms)
            limit -= 1
            if not any_of:
                continue
            try:
                count, found = task_head(value)
            except BadRequest as error:
                self.damaged.add(key)
                raise Corrupt(f"the task row at {key[3:].hex()} is damaged: {error.message}") from None
            if queue in (None, found.name):
                offset = offset_of(key[3:])
                owner = Owner(offset, record.owned.get(offset, mask_of(key[3:], count)), found)
                out[-1] = (stretch_id, out[-1][1] | may_be(self._head, record, owner, state=state, now_ms=now_ms))
        if out and after and out[0][0] == stretch_of(after):
            place = offset_of(after)
            out[0] = (out[0][0], out[0][1] & ((1 << place) - 1 if newest_first else ~((2 << place) - 1)))
        return out

    def _rows_from(self, partition: int, after: bytes, *, newest_first: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the task rows of a partition from the stretch of ``after`` on, or from the next one."""
        prefix = partition.to_bytes(2, "big") + TASK
        stretch: bytes = stretch_of(after) if after else b""
        if not newest_first:
            start = after + b"\0" if after and after == last_of(TaskId(stretch)) else stretch
            return within(self._tables.rows, prefix, prefix + start)
        start = last_of(TaskId(stretch)) if after else END
        if after and after == stretch:
            start = (int.from_bytes(after, "big") - 1).to_bytes(len(after), "big")
        return within_down(self._tables.rows, prefix, prefix + start)


def any_may_be(stretch: Stretch, state: str | None, now_ms: int) -> bool:
    """Return whether any task of a stretch may be in a state, judged by its record alone."""
    if state in ("completed", "failed", "cancelled"):
        return bool(finished_in(stretch)[state])
    if state is None:
        return True
    if state == "waiting":
        return bool(stretch.ruled)
    late = ms_of(stretch.key[7:]) <= now_ms
    return bool(stretch.moved or stretch.ruled) or state not in ("scheduled", "ready") or late == (state == "ready")


def finished_in(stretch: Stretch) -> dict[str, int]:
    """Return the finished tasks of a stretch by state, as masks."""
    done = stretch.done
    return {"completed": done[COMPLETED], "failed": stretch.failed, "cancelled": done[CANCELLED]}


def may_be(
    head: Callable[[bytes], TaskId | None], stretch: Stretch, owner: Owner, *, state: str | None, now_ms: int
) -> int:
    """Return the tasks of a row that may be in a state, as a mask that misses none of them.

    ``head``: as for `free_bits`.
    """
    finished = finished_in(stretch)
    if state is None or state in finished:
        return owner.tasks & finished.get(state or "", -1)
    live = owner.tasks & ~stretch.finished
    if not live or state == "claimed":
        return live
    held = live & ~free_bits(head, stretch, owner) if owner.queue.rules is not None else 0
    if state == "waiting":
        return held
    late = 0
    for alike, bits in groups(stretch, owner, live).items():
        late |= bits if alike.due_ms <= now_ms else 0
    return late & ~held if state == "ready" else live & ~late


def last_of(stretch: TaskId) -> TaskId:
    """Return the last id of a stretch."""
    return id_at(stretch, STRETCH_TASKS - 1)
