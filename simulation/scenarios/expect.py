"""What scenario files can expect (design: simulation).

Each expectation is a function of the cluster, what the last record did, and the words
after its name; it raises `Unmet` with what is there instead.
"""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.ring import is_closed, state_of, watches
from onyxq.core.step import Step, owed
from simulation.scenarios.words import cycle
from simulation.search.cluster import Cluster
from simulation.search.extension import NEWEST

NOBODY = "nobody"


class ScenarioError(Exception):
    """A scenario file is wrong, or what it expects did not happen; names file and line."""


class Unmet(Exception):
    """An expectation that is not met, or a command that cannot be read."""


Expectation = Callable[[Cluster, Step | None, list[str]], None]


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise Unmet(f"found: {found}")


def _words(found: list[str]) -> list[str]:
    return found or [NOBODY]


def _args(words: list[str], *names: str) -> list[str]:
    if len(words) != len(names):
        raise Unmet(f"takes {' '.join(names)}")
    return words


def ring(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``ring closed``, or ``ring a c b``: the members in the order in which they watch each other."""
    if words == ["closed"]:
        _same(is_closed(cluster.log.now.ring), True)
    else:
        _same(" ".join(_words(cycle(cluster.log.now))), " ".join(words))


def member(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``member b``: b is in the ring."""
    (peer,) = _args(words, "PEER")
    _same(state_of(cluster.log.now.ring, peer), "joined")


def state(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``state b queued``: ``joined``, ``prepared``, ``accepted``, ``queued`` or ``unknown``."""
    peer, wanted = _args(words, "PEER", "STATE")
    _same(state_of(cluster.log.now.ring, peer), wanted)


def watching(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``watches a b c``: a must watch exactly b and c; ``watches a nobody``."""
    if not words:
        raise Unmet("takes PEER OTHERS")
    _same(_words(list(watches(cluster.log.now, words[0]))), words[1:])


def watched(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``watched b a``: exactly a must watch b; ``watched b nobody``."""
    if not words:
        raise Unmet("takes PEER OTHERS")
    now = cluster.log.now
    _same(_words([peer for peer in sorted(now.peers) if words[0] in watches(now, peer)]), words[1:])


def queue(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``queue c d``: they wait for a place, in this order; ``queue nobody``."""
    _same(_words(list(cluster.log.now.ring.queue)), words)


def verdict(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``verdict applied``: of the last entry that landed; for a record that did not count, why."""
    if last is None:
        raise Unmet("nothing has landed")
    _same(last.problem or (last.outcomes[-1].verdict if last.outcomes else "nothing"), " ".join(words))


def owes(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``owes b accept_join_cluster``: as of the end of the log; ``owes b nothing``."""
    if not words:
        raise Unmet("takes PEER ENTRIES")
    found = [NEWEST.name_of(args) for args in owed(cluster.log.now, words[0], NEWEST)]
    _same(found or ["nothing"], words[1:])


def alive(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``alive a b``: these peers' processes run, and no others."""
    _same(" ".join(_words(sorted(peer.id for peer in cluster.living()))), " ".join(sorted(words)))


def leader(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``leader 0 b``: b leads partition 0; ``leader 0 nobody``."""
    number, peer = _args(words, "PARTITION", "PEER")
    _same(cluster.log.now.partitions[int(number)].leader or NOBODY, peer)


def ready(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``ready 0 yes``: whether partition 0 is served; or ``no``."""
    number, wanted = _args(words, "PARTITION", "yes|no")
    _same("yes" if cluster.log.now.partitions[int(number)].ready else "no", wanted)


def records(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``records 12``: the number of records that have landed."""
    (count,) = _args(words, "COUNT")
    _same(str(cluster.log.end), count)


def trimmed(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``trimmed 5``: the number of trimmed records; an origin covers them."""
    (count,) = _args(words, "COUNT")
    _same(str(cluster.log.trimmed), count)
    if cluster.log.trimmed and (cluster.log.origin is None or cluster.log.origin.place < cluster.log.trimmed):
        raise Unmet("no origin covers what was trimmed")


def claims(cluster: Cluster, last: Step | None, words: list[str]) -> None:
    """``claims 3``: the number of claimed tasks."""
    (count,) = _args(words, "COUNT")
    stretches = [pieces for by_stretch in cluster.log.now.claims.values() for pieces in by_stretch.values()]
    _same(str(sum(piece[1] for pieces in stretches for piece in pieces)), count)


EXPECTATIONS: dict[str, Expectation] = {
    "ring": ring,
    "member": member,
    "state": state,
    "watches": watching,
    "watched": watched,
    "queue": queue,
    "verdict": verdict,
    "owes": owes,
    "alive": alive,
    "leader": leader,
    "ready": ready,
    "records": records,
    "trimmed": trimmed,
    "claims": claims,
}
"""Word -> what is looked at."""
