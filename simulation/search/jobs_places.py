"""Checks of the drivers and slots of jobs, record by record (design: jobs on Spark, simulation).

They use the rules alone, without the code that allocates: bounds and versions hold, no job waits
that could run, and no job moves without need.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, evolve, field, frozen

from onyxq.core.replica import Job, Replica
from simulation.probes import Probes

MOVES_MAX = 2
TRIED_MAX = 3
"""Jobs without a driver for which every place is tried."""


@frozen
class Asked:
    """What a job asks for."""

    order: int
    """In which it was submitted."""
    kind: str
    share: int
    least: int
    most: int
    zones: tuple[str, ...]
    beside: str
    inputs: tuple[str, ...]


def _inherited(before: Replica, heirs: Mapping[str, str]) -> Replica:
    """Return the replica before a record as if the jobs that it replaced had the ids of their heirs."""
    known = {new: before.jobs[old] for new, old in heirs.items() if old in before.jobs}
    return evolve(before, jobs=before.jobs.update(known)) if known else before


@define(eq=False)
class Places:
    """See the module's first paragraph."""

    probes: Probes
    versions: dict[tuple[str, int], str] = field(factory=dict)
    """(job, version) -> the peer that drives it under that one."""
    moves: dict[str, int] = field(factory=dict)

    def step(
        self, before: Replica, after: Replica, asked: Mapping[str, Asked], *, heirs: Mapping[str, str], alone: bool
    ) -> str:
        """Judge one record; ``asked``: the jobs under way. ``alone``: at most one entry of it could move a job.

        ``heirs``: jobs that the record submitted in place of others: they keep the drivers of these.
        """
        offered = self._offered(after)
        problem = ""
        for name, one in asked.items():
            job = after.jobs[name]
            problem = (
                problem or self._bounds(job, one, after, asked, offered) or self._version(before, job, alone=alone)
            )
        problem = problem or self._peers(after, asked, offered)
        if not problem and alone:
            problem = self._moves(_inherited(before, heirs), after, asked, offered)
        return problem

    def _offered(self, replica: Replica) -> dict[str, int]:
        peers = [replica.peers[peer] for peer in sorted(replica.ring.members)]
        return {peer.id: peer.slots for peer in peers if peer.slots and not replica.nodes[peer.node].draining}

    # --- bounds

    def _fits(
        self, one: Asked, peer: str, replica: Replica, drivers: Mapping[str, str], asked: Mapping[str, Asked]
    ) -> bool:
        beside = one.beside in asked and drivers.get(one.beside) != peer
        return not beside and (not one.zones or replica.peers[peer].zone in one.zones)

    def _bounds(
        self, job: Job, one: Asked, after: Replica, asked: Mapping[str, Asked], offered: Mapping[str, int]
    ) -> str:
        drivers = {name: after.jobs[name].driver for name in asked}
        if not job.driver:
            self.probes.reached("a job waited")
            return f"job {job.id} waits without a reason" if not job.why else ""
        if job.driver not in offered or not self._fits(one, job.driver, after, drivers, asked):
            return f"job {job.id} is driven by {job.driver}, which may not"
        if not one.least <= job.slots <= (one.most or job.slots):
            return f"job {job.id} has {job.slots} slots of {one.least} to {one.most or 'any number'}"
        if any(not 1 <= slots <= job.slots for _, slots in job.task_slots) or len(job.task_slots) != 2:
            return f"job {job.id} has {job.slots} slots, its tasks {job.task_slots}"
        return ""

    def _version(self, before: Replica, job: Job, *, alone: bool) -> str:
        """It rises with each change of driver; no other driver ever has the same one."""
        if not job.driver:
            return ""
        if self.versions.setdefault((job.id, job.version), job.driver) != job.driver:
            return f"job {job.id} is driven by {job.driver} under {job.version}, as it was by another"
        old = before.jobs.get(job.id)
        if old is None or old.version < 0:
            return ""
        risen = job.version > old.version
        if (
            job.version < old.version
            or (job.driver != old.driver and not risen)
            or (alone and risen == (job.driver == old.driver))
        ):
            return f"job {job.id} went from {old.driver!r} at {old.version} to {job.driver!r} at {job.version}"
        if job.driver == old.driver and job.slots != old.slots:
            self.probes.reached("a job's share changed while it ran")
        return ""

    def _peers(self, after: Replica, asked: Mapping[str, Asked], offered: Mapping[str, int]) -> str:
        """No peer gives more than it has or less than it could; no job waits if there is room for it."""
        drivers = {name: after.jobs[name].driver for name in asked}
        for peer, slots in offered.items():
            here = {name: after.jobs[name].slots for name in asked if drivers[name] == peer}
            given = sum(here.values())
            if given > slots:
                return f"jobs have {given} slots of {peer}, which offers {slots}"
            hungry = [name for name in here if not asked[name].most or here[name] < asked[name].most]
            if given < slots and hungry:
                return f"{slots - given} slots of {peer} are idle, job {hungry[0]} could use them"
            wrong = self._fair(here, asked, sum(offered.values()))
            room = slots - sum(asked[name].least for name in here)
            for name, one in asked.items():
                if not drivers[name] and one.least <= room and self._fits(one, peer, after, drivers, asked):
                    return f"job {name} waits for {one.least} slots, {peer} has room for {room}"
            if wrong:
                return f"at {peer} {wrong}"
        return ""

    def _fair(self, here: Mapping[str, int], asked: Mapping[str, Asked], total: int) -> str:
        """What each scheduler owes the jobs of one peer."""
        order = sorted(here, key=lambda name: asked[name].order)
        more = {name for name in here if here[name] > asked[name].least}
        kinds = {
            kind: [name for name in order if asked[name].kind == kind] for kind in ("percentage", "greedy", "balanced")
        }
        could = [name for name in order if not asked[name].most or here[name] < asked[name].most]
        for name in kinds["percentage"]:
            lacks = name in could and here[name] < total * asked[name].share // 100
            if lacks and more & {*kinds["greedy"], *kinds["balanced"]}:
                return f"job {name} has {here[name]} slots, less than its share"
        for place, name in enumerate(kinds["greedy"]):
            if name in could and more & {*kinds["greedy"][place + 1 :], *kinds["balanced"]}:
                return f"greedy job {name} has {here[name]} slots and others have what it could take"
        for name in kinds["balanced"]:
            rich = [other for other in kinds["balanced"] if other in more and here[other] > here[name] + 1]
            if name in could and rich:
                return f"job {name} has {here[name]} slots, {rich[0]} has {here[rich[0]]}"
        return ""

    # --- moves

    def _moves(self, before: Replica, after: Replica, asked: Mapping[str, Asked], offered: Mapping[str, int]) -> str:
        """A running job keeps its driver, unless that is impossible or another job would starve."""
        order = sorted(asked, key=lambda name: asked[name].order)
        kept: dict[str, str] = {}
        room = dict(offered)
        for name in order:
            old = before.jobs[name].driver if name in before.jobs else ""
            if room.get(old, -1) >= asked[name].least and self._fits(asked[name], old, after, kept, asked):
                kept[name] = old
                room[old] -= asked[name].least
        new = [name for name in order if name not in kept and after.jobs[name].driver]
        moved = [name for name, driver in kept.items() if after.jobs[name].driver != driver]
        self._note(before, after, asked, kept, moved, new)
        if not moved:
            return ""
        bound = {one.beside for one in asked.values()}
        if any(name in bound or asked[name].beside in asked for name in moved):
            return f"{moved} have moved, and what runs beside them must not"
        if not all(after.jobs[name].driver for name in moved) or len(moved) > MOVES_MAX * len(new):
            return f"{moved} have moved for {new}"
        fewer = self._fewer(moved, new, room, kept, after, asked) if len(new) <= TRIED_MAX else ""
        return f"{moved} have moved for {new}, although {fewer}" if fewer else ""

    def _fewer(
        self,
        moved: list[str],
        new: list[str],
        room: dict[str, int],
        kept: dict[str, str],
        after: Replica,
        asked: Mapping[str, Asked],
    ) -> str:
        """How fewer moves would have made room, or "": no move, or one instead of more."""
        if self._place(new, room, kept, after, asked):
            return "there was room"
        for name in kept if len(moved) > 1 else ():
            if asked[name].beside not in asked and all(one.beside != name for one in asked.values()):
                others = {other: peer for other, peer in kept.items() if other != name}
                freed = {**room, kept[name]: room[kept[name]] + asked[name].least}
                if self._place([name, *new], freed, others, after, asked):
                    return f"{name} was enough"
        return ""

    def _place(
        self,
        new: list[str],
        room: dict[str, int],
        drivers: dict[str, str],
        after: Replica,
        asked: Mapping[str, Asked],
    ) -> bool:
        """Whether all of them find a place beside those that are where they are; every way is tried."""
        if not new:
            return True
        name, one = new[0], asked[new[0]]
        for peer in room:
            if room[peer] >= one.least and self._fits(one, peer, after, drivers, asked):
                rest = {**room, peer: room[peer] - one.least}
                if self._place(new[1:], rest, {**drivers, name: peer}, after, asked):
                    return True
        return False

    def _note(
        self,
        before: Replica,
        after: Replica,
        asked: Mapping[str, Asked],
        kept: Mapping[str, str],
        moved: list[str],
        new: list[str],
    ) -> None:
        if moved:
            self.probes.reached("a job moved to make room")
        if len(moved) == 2 and len(new) == 1:
            self.probes.reached("two jobs moved to make room for one")
        for name in asked:
            old = before.jobs[name].driver if name in before.jobs else ""
            if old and not after.jobs[name].driver:
                self.probes.reached("a job that ran had to wait")
            elif old and after.jobs[name].driver != old:
                if name not in kept and old not in after.ring.members:
                    self.probes.reached("a job moved because its driver had gone")
                self.moves[name] = self.moves.get(name, 0) + 1
                if self.moves[name] == 2:
                    self.probes.reached("a job moved twice")
                if after.jobs[name].sealed and after.jobs[name].batch >= 0:
                    self.probes.reached("a job moved with what was sealed and committed")
