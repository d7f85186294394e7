"""Placement: which nodes hold a partition and which peer leads it (design: partitions).

A pure function of the replica.  Every entry that changes the ring's members calls `reconcile`,
which recomputes targets and leaders of all partitions.  Copies are placed by
rendezvous hashing under a balance cap and spread over zones.  They stay where they are if
balance and zones permit, so that

* a node that leaves changes no target: it stays in its cohorts until it is replaced,
* peers that return one by one after a restart of the whole cluster move nothing,
* a node that joins takes its fair share, and little else moves.

The objective, in this order: few copies of a partition in one zone, even numbers of
copies per node, few moves.  Every move lowers the first two, so the search ends, and
reconciling twice gives the same result as once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from attrs import evolve
from pyrsistent import PMap

from onyxq.core.replica import Node, Partition, Replica, majority


def reconcile(replica: Replica) -> Replica:
    """Return the replica with the targets and leaders that its nodes require.

    If a partition's leader or target changed, its epoch rises by one and it is not ready.
    A partition without members gets its target as members at once.
    """
    if replica.cluster is None:
        return replica
    blank = Partition()
    partitions = {number: replica.partitions.get(number, blank) for number in range(replica.settings.partitions)}
    cohorts = _Cohorts(replica, partitions).solve()
    placed = {number: _with_target(found, cohorts[number]) for number, found in partitions.items()}
    leaders = _Leaders(replica, placed).solve()
    changed = replica.partitions.evolver()
    for number, found in placed.items():
        new = _with_epoch(partitions[number], evolve(found, leader=leaders[number]))
        if new != replica.partitions.get(number):
            changed[number] = new
    return evolve(replica, partitions=changed.persistent()) if changed.is_dirty() else replica


def settled(replica: Replica, number: int) -> Replica:
    """Return the replica after a partition settled: its target becomes its members, and its leader is chosen again.

    When the last partition settles, leaders are spread evenly over all nodes.  Before that, only the
    partition itself chooses a leader.  This is cheap if many partitions settle together.
    """
    found = replica.partitions[number]
    partitions = replica.partitions.set(number, evolve(found, members=found.target))
    if all(part.members == part.target for part in partitions.values()):
        return reconcile(evolve(replica, partitions=partitions))
    leader = _Leaders(replica, partitions).choose(number)
    new = _with_epoch(found, evolve(partitions[number], leader=leader))
    return evolve(replica, partitions=partitions.set(number, new))


LOST = "~"
"""Separator of node and store in the name of a lost copy."""
FORCED = f"{LOST}forced"
"""Between node and number in the name of a copy that an operator gave up."""


def voided(replica: Replica, node: str, store: str) -> Replica:
    """Return the replica after a node lost its store: its copies no longer count, and are made again.

    In the members, the lost copy takes the node's place under a name that no node has.  So it counts
    towards the size of a majority, but is never part of one.  The node stays in the targets, and is a
    member again once the partition settles.  All its partitions get another epoch, because the node
    does not know any more which epochs it had promised.
    """
    lost = f"{node}{LOST}{store}"
    partitions = replica.partitions.evolver()
    for number, found in sorted(replica.partitions.items()):
        if node in holders(found):
            members = tuple(sorted(lost if one == node else one for one in found.members))
            partitions[number] = evolve(found, members=members, epoch=found.epoch + 1, ready=False)
    return evolve(replica, partitions=partitions.persistent())


def unanimous(nodes: Sequence[str], *, lost: Sequence[str]) -> tuple[str, ...]:
    """Return members such that each majority of them contains all ``nodes``.

    Copies that were lost with nodes of ``lost``, at least one, count towards its size.
    """
    names = [node.partition(LOST)[0] for node in lost]
    added = (f"{names[at % len(names)]}{FORCED}{at}" for at in range(len(nodes) - 2))
    return tuple(sorted((*nodes, *added)))


def yielded(replica: Replica, found: Partition) -> Partition:
    """Return ``found`` led by the next live candidate after its leader, at the next epoch.

    The leadership goes round all live holders, nodes of both cohorts first.  So a node
    that cannot become ready never blocks a partition that others could lead.
    """
    order = [replica.nodes[node].peer for tier in _tiers(replica.nodes, found) for node in tier]
    place = order.index(found.leader) + 1 if found.leader in order else 0
    leader = order[place % len(order)] if order else ""
    return evolve(found, leader=leader, epoch=found.epoch + 1, ready=False, yields=found.yields + 1)


def holders(partition: Partition) -> tuple[str, ...]:
    """Return the sorted ids of the nodes that hold, or will hold, a copy."""
    return tuple(sorted(node for node in {*partition.members, *partition.target} if LOST not in node))


def eligible_nodes(replica: Replica) -> tuple[str, ...]:
    """Return the sorted ids of the nodes that may get copies: present, not draining, not replaced."""
    return tuple(sorted(n.id for n in replica.nodes.values() if n.peer and not n.draining and not n.replaced))


@lru_cache(maxsize=1 << 16)
def weight(partition: int, node: str) -> int:
    """Return the rendezvous weight; the nodes with the highest weights are a partition's natural cohort."""
    return int.from_bytes(blake2b(f"{partition}/{node}".encode(errors="replace"), digest_size=8).digest(), "big")


def _with_target(found: Partition, target: tuple[str, ...]) -> Partition:
    if found.target == target and found.members:
        return found
    return evolve(found, target=target, members=found.members or target)


def _with_epoch(old: Partition, new: Partition) -> Partition:
    if (old.leader, old.target) == (new.leader, new.target):
        return new
    return evolve(new, epoch=old.epoch + 1, ready=False)


# --- cohorts ------------------------------------------------------------------


class _Cohorts:
    """The search for targets: all partitions at once, on plain dicts."""

    def __init__(self, replica: Replica, partitions: Mapping[int, Partition]) -> None:
        self.nodes = replica.nodes
        self.partitions = partitions
        self.copies = max(1, replica.settings.replicas)
        self.zone_copies_max = max(1, (self.copies - 1) // 2)  # the most copies that are not a majority
        self.eligible = eligible_nodes(replica)
        self.zones = {node.id: node.zone for node in replica.nodes.values()}
        self.cohorts = {number: self._kept(partitions[number]) for number in sorted(partitions)}
        self.load = dict.fromkeys(self.eligible, 0)
        for cohort in self.cohorts.values():
            for node in cohort:
                self.load[node] = self.load.get(node, 0) + 1

    def solve(self) -> dict[int, tuple[str, ...]]:
        """Return the target of every partition, sorted."""
        wanted = sum(min(self.copies, len({*self.eligible, *cohort})) for cohort in self.cohorts.values())
        self.cap = -(-wanted // max(1, len(self.load)))
        for number, cohort in self.cohorts.items():
            if len(cohort) < self.copies:
                self._fill(number, cohort)
        if len({self.zones[node] for node in self.eligible}) > 1:
            for number in self.cohorts:
                self._spread(number)
        self._level()
        return {number: tuple(sorted(c)) or self.partitions[number].target for number, c in self.cohorts.items()}

    def _kept(self, found: Partition) -> list[str]:
        """Return the nodes that keep their copy.

        Replaced nodes do not.  Draining nodes do not either if no live majority would remain without them.
        """
        kept = self._not_replaced(found.target or found.members)
        if not self._must_shed(kept):
            return kept
        if not self.eligible:  # every node drains: no node could take over, so nothing moves
            return self._not_replaced(found.members) or kept
        return self._with_live_majority([node for node in kept if not self._leaving(node)])

    def _not_replaced(self, cohort: Iterable[str]) -> list[str]:
        return [node for node in cohort if node in self.nodes and not self.nodes[node].replaced]

    def _leaving(self, node: str) -> bool:
        return bool(self.nodes[node].peer) and self.nodes[node].draining

    def _must_shed(self, cohort: Sequence[str]) -> bool:
        staying = {node for node in cohort if self.nodes[node].peer and not self.nodes[node].draining}
        return not majority(cohort, staying) and any(self._leaving(node) for node in cohort)

    def _with_live_majority(self, cohort: list[str]) -> list[str]:
        """Return the cohort without some of the absent nodes, after draining nodes were removed.

        It removes absent nodes until the cohort has a live majority once it is filled up.
        """
        absent = sorted(node for node in cohort if not self.nodes[node].peer)
        live = len(cohort) - len(absent)
        free = sum(node not in cohort for node in self.eligible)
        while absent and live + min(free, self.copies - live - len(absent)) <= len(absent):
            cohort.remove(absent.pop())
        return cohort

    def _fill(self, number: int, cohort: list[str]) -> None:
        free = [node for node in self.eligible if node not in cohort]
        members = self.partitions[number].members
        by_weight = sorted(free, key=lambda node: (node not in members, -weight(number, node)))
        while by_weight and len(cohort) < self.copies:
            counts = self._zone_counts(cohort)
            best = min(by_weight, key=lambda node: (self._crowded(counts, node), self.load[node] >= self.cap))
            by_weight.remove(best)
            cohort.append(best)
            self.load[best] += 1

    def _zone_counts(self, cohort: Iterable[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for node in cohort:
            zone = self.zones[node]
            counts[zone] = counts.get(zone, 0) + 1
        return counts

    def _crowded(self, counts: Mapping[str, int], node: str) -> bool:
        """Return whether one more copy in the node's zone would exceed the zone's maximum."""
        return counts.get(self.zones[node], 0) >= self.zone_copies_max

    def _spread(self, number: int) -> None:
        """Move copies out of zones that hold too many while another zone has room."""
        cohort = self.cohorts[number]
        members = self.partitions[number].members
        while True:
            counts = self._zone_counts(cohort)
            givers = [n for n in cohort if n in self.eligible and counts[self.zones[n]] > self.zone_copies_max]
            if not givers:
                return
            takers = [n for n in self.eligible if n not in cohort and not self._crowded(counts, n)]
            if not takers:
                return
            giver = min(givers, key=lambda n: (n in members, -self.load[n], weight(number, n), n))
            taker = min(takers, key=lambda n: (n not in members, self.load[n], -weight(number, n), n))
            self._move(number, giver, taker)

    def _move(self, number: int, giver: str, taker: str) -> None:
        cohort = self.cohorts[number]
        cohort[cohort.index(giver)] = taker
        self.load[giver] -= 1
        self.load[taker] += 1

    def _level(self) -> None:
        """Even out copies per node: the bulk first, then one by one."""
        loads = [self.load[node] for node in self.eligible]
        if not loads or max(loads) - min(loads) < 2:
            return
        self._held = {node: set[int]() for node in self.load}
        for number, cohort in self.cohorts.items():
            for node in cohort:
                self._held[node].add(number)
        self._give_surplus(self.eligible)
        zones = {self.zones[node] for node in self.eligible}
        for zone in sorted(zones) if len(zones) > 1 else ():
            self._give_surplus([node for node in self.eligible if self.zones[node] == zone])
        while sum(self._give_singly(giver) for giver in self._by_load(self.eligible, descending=True)):
            pass  # every round lowers the sum of squared loads

    def _give_surplus(self, group: Sequence[str]) -> None:
        """Move copies in bulk from nodes of a group above its mean to nodes below it."""
        mean = -(-sum(self.load[node] for node in group) // len(group))
        for giver in self._by_load(group, descending=True):
            for taker in self._by_load(group):
                self._give(giver, taker, min(self.load[giver] - mean, mean - self.load[taker]))

    def _give_singly(self, giver: str) -> bool:
        """Give one copy to the least loaded node that may take one."""
        return any(
            self.load[giver] - self.load[taker] > 1 and self._give(giver, taker, 1)
            for taker in self._by_load(self.eligible)
        )

    def _by_load(self, group: Iterable[str], *, descending: bool = False) -> list[str]:
        return sorted(group, key=lambda node: (-self.load[node] if descending else self.load[node], node))

    def _give(self, giver: str, taker: str, most: int) -> int:
        """Move up to ``most`` copies, the least costly first; return how many."""
        if most < 1:
            return 0
        movable = [number for number in sorted(self._held[giver]) if self._may_move(number, giver, taker)]
        movable.sort(key=lambda number: self._cost(number, giver, taker))
        for number in movable[:most]:
            self._move(number, giver, taker)
            self._held[giver].remove(number)
            self._held[taker].add(number)
        return len(movable[:most])

    def _may_move(self, number: int, giver: str, taker: str) -> bool:
        cohort = self.cohorts[number]
        if taker in cohort:
            return False
        if self.zones[giver] == self.zones[taker]:
            return True
        counts = self._zone_counts(cohort)
        return not self._crowded(counts, taker) or counts[self.zones[giver]] > self.zone_copies_max

    def _cost(self, number: int, giver: str, taker: str) -> tuple[bool, bool, bool, int]:
        """Return what a move disturbs, the worst first: a new copy must be made, then a leader must change."""
        found = self.partitions[number]
        leads = bool(found.leader) and found.leader == self.nodes[giver].peer
        return (giver in found.members, taker not in found.members, leads, -weight(number, taker))


# --- leaders ------------------------------------------------------------------


def _tiers(nodes: PMap[str, Node], found: Partition) -> tuple[list[str], list[str], list[str]]:
    """Return the live nodes that could lead, best first: of both cohorts, of members only, of target only.

    Draining nodes count only if there are no others.
    """
    live = [node for node in holders(found) if node in nodes and nodes[node].peer]
    able = [node for node in live if not nodes[node].draining] or live
    members, target = found.members, found.target
    return (
        [node for node in able if node in members and node in target],
        [node for node in able if node in members and node not in target],
        [node for node in able if node not in members],
    )


class _Leaders:
    """The search for leaders: leaders stay if they can, then are spread evenly over the nodes that can lead."""

    def __init__(self, replica: Replica, partitions: Mapping[int, Partition]) -> None:
        self.nodes = replica.nodes
        self.partitions = partitions
        self.node_of = {node.peer: node.id for node in replica.nodes.values() if node.peer}
        self.load: dict[str, int] = dict.fromkeys(self.node_of.values(), 0)
        for found in partitions.values():
            if found.leader in self.node_of:
                self.load[self.node_of[found.leader]] += 1

    def solve(self) -> dict[int, str]:
        """Return the leading peer of every partition, or an empty string."""
        leading: dict[int, str] = {}
        options: dict[int, list[str]] = {}
        for number in sorted(self.partitions):
            leading[number], options[number] = self._first_choice(number)
        # A partition that is not ready serves no clients yet: moving it disturbs least.
        order = sorted(options, key=lambda number: (self.partitions[number].ready, number))
        while sum(self._even_out(number, leading, options[number]) for number in order):
            pass  # every round lowers the sum of squared loads
        return {number: self._peer(node) for number, node in leading.items()}

    def choose(self, number: int) -> str:
        """Return the leading peer of one partition."""
        leading: dict[int, str] = {}
        leading[number], options = self._first_choice(number)
        self._even_out(number, leading, options)
        return self._peer(leading[number])

    def _peer(self, node: str) -> str:
        return self.nodes[node].peer if node else ""

    def _first_choice(self, number: int) -> tuple[str, list[str]]:
        """Return the node to lead, and the candidates among which balance may choose.

        The node is the present leader's node if it may stay, otherwise the least loaded candidate.
        """
        found = self.partitions[number]
        tiers = _tiers(self.nodes, found)
        candidates = next((tier for tier in tiers if tier), [])
        node = self.node_of.get(found.leader, "")
        if node in candidates and not found.yields:
            return node, candidates
        if found.yields and any(node in tier for tier in tiers):
            return node, []  # its round of yields is under way
        if node:
            self.load[node] -= 1
        best = min(candidates, key=lambda n: (self.load[n], -weight(number, n)), default="")
        if best:
            self.load[best] += 1
        return best, candidates

    def _even_out(self, number: int, leading: dict[int, str], options: Iterable[str]) -> bool:
        node = leading[number]
        best = min(options, key=lambda n: (self.load[n], -weight(number, n)), default=node)
        if not node or self.load[node] - self.load[best] < 2:
            return False
        self.load[node] -= 1
        self.load[best] += 1
        leading[number] = best
        return True
