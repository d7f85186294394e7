"""A node of the search of moves, which makes and drops copies as a real one does (design: simulation).

It compares copies, judges whether a copy is complete and whether a move may end, and hands over and drops copies by the
code of `onyxq.leader` and `onyxq.node`. Takeovers keep the few steps of `simulation.search.facts_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from onyxq.core.errors import NotLeader, OnyxqError
from onyxq.core.facts import Row
from onyxq.core.replica import majority
from onyxq.leader.cohort.copy_pace import Pacer
from onyxq.leader.cohort.member import checked_rows
from onyxq.leader.leader import TARGET_PATIENCE_S, PartitionLeader
from onyxq.node.moved_copies import MovedAway
from onyxq.system.procedures import Procedure, now
from simulation.search.facts_node import FactsNode, Machine, SearchDisk


class NoPace(Pacer):
    """Lets copies be made at any speed; the search decides how fast disks and messages are."""

    def page(self) -> Any:
        """Return a context that waits for nothing."""
        return nullcontext()

    async def took(self, size: int) -> None:
        """Wait for nothing."""


class MovesLeader(PartitionLeader):
    """A leader whose comparisons of copies are procedures."""

    def __init__(self, host: MovesNode, *, partition: int, epoch: int, peer: str) -> None:
        super().__init__(host, partition=partition, epoch=epoch, peer=peer)
        self._node = host

    def _note_progress(self) -> None:
        super()._note_progress()
        self._node.progress.fire()

    async def _until_promised(self) -> None:
        while not self._promised.is_set():
            if self.deposed:
                raise NotLeader(f"partition {self.partition} is no longer led from here")
            await self._node.progress.wait()

    async def _share_pending(self, node: str, call: object) -> None:
        """Exchange no pending rows, because the search makes no transactions."""


class MovesNode(FactsNode):
    """See the module's first paragraph."""

    def __init__(
        self, name: str, disk: SearchDisk, machine: Machine, *, random: Callable[[], float], post: Callable[..., Any]
    ) -> None:
        super().__init__(name, disk, machine, random=random, post=post)
        self.reached: Callable[[str], None] = lambda _: None
        """Counts a probe; see `simulation.probes.MOVES`."""
        self.pacer = NoPace()
        self._moved_away = MovedAway(self)
        self._handing_over = False
        self._comparisons: dict[tuple[PartitionLeader, str], Procedure] = {}
        """Running comparison of each leader with each holder."""
        cohort = self.cohort
        self.handlers |= {
            "cohort.hours": _answering(lambda a: cohort.hours(a["partition"])),
            "cohort.leaves": _answering(lambda a: cohort.leaves(a["partition"], a["hour"])),
            "cohort.keys": _answering(lambda a: cohort.keys(a["partition"], a["hour"], a["leaves"])),
            "cohort.rows": _answering(lambda a: cohort.rows(a["keys"])),
            "lead.offer": self._offered,
        }

    def sync_limit(self, node: str, *, takeover: bool = False) -> Any:
        """Return a limit that limits nothing: a real one needs a task."""
        return nullcontext()

    @contextmanager
    def storing_found(self, leader: PartitionLeader, rows: Sequence[Row]) -> Iterator[None]:
        """Surround the storing of rows that another node has, and count it."""
        self.reached("a leader stored rows that a majority may lack")
        with super().storing_found(leader, rows):
            yield

    async def _offered(self, args: dict[str, Any]) -> None:
        self.reached("a node offered rows that its leader lacked")
        leader = self.operations.tokens.leader(args["partition"])
        await leader.take_offer(checked_rows(args["rows"], args["partition"]))

    # --- leaders

    def _new_leader(self, number: int, epoch: int) -> MovesLeader:
        return MovesLeader(self, partition=number, epoch=epoch, peer=self.peer_id)

    def _stop_leading(self, number: int) -> None:
        leader = self.leaders[number]
        super()._stop_leading(number)
        for (comparing, _), procedure in list(self._comparisons.items()):
            if comparing is leader:
                procedure.withdraw()

    async def _until_read(self, leader: PartitionLeader) -> None:
        """Wait as `PartitionLeader.run` does: for the members' rows, and not long for the target's promises."""
        self.progress.fire()  # comparisons wait until the leader's own promise is stored
        while not leader.deposed and not leader._has_read_majority():
            await self.progress.wait()
        until = now() + TARGET_PATIENCE_S
        while not leader.deposed and not majority(leader.placed.target, leader._reached) and now() < until:
            await self.progress.wait(until - now())

    def behind(self, leader: PartitionLeader) -> list[str]:
        """Return the holders that the leader has to compare with its own copy, and does not now."""
        return [node for node in super().behind(leader) if (leader, node) not in self._comparisons]

    async def follow(self, leader: PartitionLeader, other: FactsNode) -> None:
        """Compare a leader's copy with a holder's once, unless that is being done; see `PartitionLeader.compare`."""
        pair, procedure = (leader, other.node_id), self.procedures.making_step
        assert procedure is not None
        if pair in self._comparisons or leader.deposed:
            return
        self._comparisons[pair] = procedure
        try:
            with suppress(OnyxqError):  # the leader has noted the error
                await leader.compare(other.node_id)
        finally:
            del self._comparisons[pair]
            self.progress.fire()

    # --- copies that moved away

    async def hand_over(self) -> None:
        """Hand over and drop copies of partitions that moved away, as `MovedAway.run` does from time to time."""
        if self._handing_over or self.peer_id not in self.replica.ring.members:
            return
        self._handing_over, held = True, self.store.partitions()
        try:
            await self._moved_away._look()
        finally:
            self._handing_over = False
        if len(self.store.partitions()) < len(held):
            self.reached("a node dropped a copy that moved away")


def _answering(function: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Return the handler of a method that answers at once."""

    async def handler(args: dict[str, Any]) -> Any:
        return function(args)

    return handler
