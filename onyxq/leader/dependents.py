"""Finds failed tasks for which other tasks still wait (design: dependencies, retention).

A task that depends on a failed one fails, is cancelled or runs, as its policy says. A purged task
counts as completed. So a failed task must not be purged before all its dependents know of the
failure. Its leader asks the leaders of all partitions first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import Corrupt, OnyxqError, Unavailable
from onyxq.core.ids import TaskId, id_at, offset_of, stretch_of
from onyxq.core.replica import leader_node
from onyxq.core.task_headers import DEPENDS
from onyxq.leader.cohort import pending_facts
from onyxq.leader.host import OperationsHost
from onyxq.system.procedures import pause

PAGE_RUNS = 256
ASK_TIMEOUT_S = 10.0
STRETCHES_MAX = 4_000
"""Most stretches in one request."""


class Dependents:
    """Finds dependents of failed tasks; one per node."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host

    async def everywhere(self, stretches: Sequence[bytes]) -> set[bytes]:
        """Return those of the stretches on which an unfinished task anywhere in the cluster depends.

        Raises `Unavailable` unless all partitions have answered.
        """
        if not stretches:
            return set()
        replica = self._host.replica
        nodes = {found.id for number in replica.partitions if (found := leader_node(replica, number)) is not None}
        missing = set(replica.partitions)
        out: set[bytes] = set()
        for node in sorted(nodes):
            heard = set(replica.partitions)
            for start in range(0, len(stretches), STRETCHES_MAX):
                part = list(stretches[start : start + STRETCHES_MAX])
                if node == self._host.node_id:
                    answer = await self.depended(part)
                else:
                    answer = await self._host.call(node, "lead.depended", {"stretches": part}, timeout_s=ASK_TIMEOUT_S)
                out.update(answer["depended"])
                heard &= set(answer["partitions"])
            missing -= heard
        if missing:
            raise Unavailable(f"partition {min(missing)} cannot report now whether its tasks wait for failed ones")
        return out

    async def depended(self, stretches: Sequence[bytes]) -> dict[str, Any]:
        """Return those on which unfinished local tasks depend, and the partitions that this answer covers."""
        wanted = set(stretches)
        found: set[bytes] = set()
        heard = []
        for partition, leader in sorted(self._host.leaders.items()):
            if not leader.ready or leader.deposed or self._lacks_pending(partition):
                continue
            await self._host.unflushed_writes.flushed()
            for header in self._headers(partition):
                if header is None:
                    await pause(0.0)
                else:
                    found.update(wanted.intersection(stretch_of(one) for one in header.get(DEPENDS, ())))
            if partition in self._host.store.unindexed():
                continue  # some waiting runs were not listed
            try:
                await leader.write([])  # a deposed leader may not know the newest tasks
            except OnyxqError:
                continue
            heard.append(partition)
        return {"partitions": heard, "depended": sorted(found)}

    def _headers(self, partition: int) -> Iterator[dict[str, Any] | None]:
        """Yield the headers of waiting runs, and of runs that prepared transactions will enqueue; None after a page."""
        after = b""
        while page := self._host.store.waiting(partition, after=after, limit=PAGE_RUNS):
            for _, body in page:
                yield facts.task_header(body)[0]
            last, body = page[-1]
            after = id_at(stretch_of(last), offset_of(last) + facts.task_header(body)[1] - 1)
            yield None
        for _, header in pending_runs(self._host, partition):
            yield header

    def _lacks_pending(self, partition: int) -> bool:
        """Return whether pending rows of a committed transaction are missing here and must be fetched."""
        committed = self._host.replica.transactions
        if not any(partition in found.parts and found.parts[partition][0] for found in committed.values()):
            return False
        here = self._host.store.pending_transactions(partition)
        return any(
            found.parts.get(partition, (0, b""))[0] and pending_facts.key_in(found, name, partition) not in here
            for name, found in committed.items()
        )


def pending_runs(host: OperationsHost, partition: int) -> Iterator[tuple[TaskId, dict[str, Any]]]:
    """Yield first ids and headers of the runs that pending transactions enqueue in a partition; raises `Corrupt`."""
    store = host.store
    for name in store.pending_transactions(partition):
        try:
            items = pending_facts.unpack_items([row.body for row in store.pending(partition, name)])
        except ValueError as error:
            raise Corrupt(f"pending facts of {name} cannot be read: {error}") from None
        for item in items:
            if item[0] == "T":
                yield TaskId(item[1]), facts.task_header(item[2])[0]
