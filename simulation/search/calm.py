"""The end of the faults: the state that every pure cluster must reach without help.

Sessions of dead peers end, live peers do what they owe, leaders take over, settle and expire
claims. Then all live peers are in the ring, the ring is closed, partitions are ready where they
should be, and nothing is in progress any more.
"""

from __future__ import annotations

from pyrsistent import pmap

from onyxq.core.claims import lapsed
from onyxq.core.ids import counter_of
from onyxq.core.replica import HELD_MS
from onyxq.core.ring import is_closed
from simulation.checkers import Broken
from simulation.search.cluster import Cluster
from simulation.search.extension import PROGRAMS
from simulation.search.jobs import driven
from simulation.search.peer import Peer

ROUND_MS = 400
ROUNDS_MAX = 200


def calm(cluster: Cluster) -> int:
    """Let a cluster recover; returns how many rounds it took. Raises `Broken` if it does not."""
    for known in list(cluster.pulses):
        if not cluster.peers[known].alive:
            cluster.expire(known)
    for node in cluster.latest:
        cluster.install(node, len(PROGRAMS) - 1)
    for rounds in range(ROUNDS_MAX):
        if not cluster.living():
            cluster.start(next(iter(cluster.latest), "a"))
        for peer in cluster.living():
            work(cluster, peer)
        if not unsettled(cluster):
            return rounds
        cluster.wait(ROUND_MS)
    raise Broken("liveness: " + "; ".join(unsettled(cluster)))


def work(cluster: Cluster, peer: Peer) -> None:
    """All that one peer can do now."""
    cluster.read(peer.id)
    cluster.react(peer.id)
    lead(cluster, peer)
    drive(cluster, peer)
    cluster.collect(peer.id)
    if peer.alive and peer.waiting:
        cluster.send(peer.id)
    elif not peer.flying and _counts_leases(peer):
        cluster.beat(peer.id)
    cluster.flush(peer.id)


def _counts_leases(peer: Peer) -> bool:
    """Whether it sees to it that log time passes: it serves a partition with claims that can lapse."""
    replica = peer.replica
    return peer.known and any(
        piece[4] != HELD_MS
        for number in peer.led()
        if replica.partitions[number].ready
        for pieces in replica.claims.get(number, pmap()).values()
        for piece in pieces
    )


def lead(cluster: Cluster, peer: Peer) -> None:
    """What a peer does for the partitions that it leads."""
    if not peer.alive:
        return
    replica = peer.replica
    for number in peer.led():
        found = replica.partitions[number]
        if not found.ready:
            cluster.ready(peer.id, number)
        elif found.members != found.target:
            cluster.settle(peer.id, number)
        for name in sorted(replica.transactions) if found.ready else ():
            if number in replica.transactions[name].parts:
                cluster.settle_part(peer.id, name, number)
        held = replica.claims.get(number, pmap()) if found.ready else pmap()
        for stretch, pieces in sorted(held.items()):
            for offset, count, _, _, deadline_ms in pieces:
                if lapsed(deadline_ms, replica.log_time_ms):
                    cluster.expire_claim(peer.id, number, counter_of(stretch) + offset, count)


def drive(cluster: Cluster, peer: Peer) -> None:
    """What a peer does for the jobs that it drives."""
    for name in driven(peer) if peer.alive else ():
        if not peer.replica.jobs[name].ready:
            cluster.driver_ready(peer.id, name)


def unsettled(cluster: Cluster) -> list[str]:
    """What a cluster without faults has not come to yet, in words; empty if it is at rest."""
    now, out = cluster.log.now, []
    living = sorted(peer.id for peer in cluster.living())
    if sorted(now.ring.members) != living:
        out.append(f"members are {sorted(now.ring.members)}, alive are {living}")
    if not is_closed(now.ring):
        out.append("the ring is not closed")
    if now.ring.prepared or now.ring.accepted or now.ring.queue:
        out.append("joins are under way")
    for number, found in sorted(now.partitions.items()):
        if not cluster.majority_runs(found.members):
            continue  # its data is out of reach: it must wait
        if not found.ready or found.leader not in living:
            out.append(f"partition {number} is not served")
        elif found.members != found.target and cluster.majority_runs(found.target):
            out.append(f"partition {number} has not settled")
        elif any(number in one.parts for one in now.transactions.values()):
            out.append(f"a transaction of partition {number} never settles")
        elif number in now.claims:
            out.append(f"claims of partition {number} never end")
    out += [f"job {name} never runs" for name, job in sorted(now.jobs.items()) if job.driver and not job.ready]
    if not now.snapshot.finished:
        out.append("a collection is not finished")
    out += [f"{peer.id} has entries on their way" for peer in cluster.living() if peer.busy]
    out += [f"{peer.id} has not read all" for peer in cluster.living() if peer.place < cluster.log.end]
    return out
