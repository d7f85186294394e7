"""A whole cluster without any I/O: peers, a log and faults, moved by words (design: simulation).

`Cluster.act` takes one word and its arguments, such as ``land b`` or ``grant a 0 5 3 200``.
Every action is small, so that a search can choose any interleaving of reading, deciding,
appending and dying; the same words make up scenario files and the traces of failures.
An action that makes no sense at the moment does nothing and answers False, so any part of
a trace can be left out.  Nodes are named by letters; the peers of node ``b`` are ``b``,
``b2``, ``b3`` and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import define

from log_entries import (
    expire_claims,
    finish_gc,
    grant_claims,
    ready_partition,
    release_claims,
    renew_claims,
    settle_partition,
    yield_partition,
)
from onyxq.core import snapshot
from onyxq.core.facts import RELEASED, RETRIED
from onyxq.core.ids import Run
from onyxq.core.replica import Partition
from simulation.search.jobs import Jobbing
from simulation.search.members import Options
from simulation.search.peer import Peer, collection
from simulation.search.queues import TASKS, task

LONG_MS = 60_000
"""No connection keeps what it carries for so long."""
EVENTS = {"done": release_claims.COMPLETED_EVENT, "back": RELEASED, "retry": RETRIED}

__all__ = ["ACTIONS", "TASKS", "Action", "Cluster", "Options", "parameters", "task"]

Argument: TypeAlias = int | str
Action: TypeAlias = tuple[Argument, ...]
"""A word and its arguments."""


@define(eq=False)
class Cluster(Jobbing):
    """See the module's first paragraph."""

    def act(self, word: Argument, *args: Any) -> bool:
        """Carry one action out; returns whether it made sense."""
        return ACTIONS[word](self, *args)  # type: ignore[index]

    # --- leaders

    def ready(self, peer_id: str, partition: int, behind: int = 0) -> bool:
        """A leader that has taken over, which takes a majority of members that run, says so.

        Here and below, the epoch that the leader names is older than the one that it knows by ``behind``:
        so does what is left of a leader that was deposed."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.led() or not self.majority_runs(self._known(peer, partition).members):
            return False
        return self._submit(peer, ready_partition.Args(partition, self._epoch(peer, partition, behind)))

    def settle(self, peer_id: str, partition: int, behind: int = 0) -> bool:
        """A leader's target is up to date, which takes a majority of it that runs."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.led() or not self.majority_runs(self._known(peer, partition).target):
            return False
        return self._submit(peer, settle_partition.Args(partition, self._epoch(peer, partition, behind)))

    def give_up(self, peer_id: str, partition: int, behind: int = 0) -> bool:
        """A leader gives its partition up."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.led():
            return False
        return self._submit(peer, yield_partition.Args(partition, self._epoch(peer, partition, behind)))

    def _known(self, peer: Peer, partition: int) -> Partition:
        return peer.replica.partitions[partition]

    def grant(self, peer_id: str, partition: int, offset: int, count: int, lease_ms: int, behind: int = 0) -> bool:
        """A member grants ``count`` tasks from ``offset`` on; whether it leads the log must say."""
        peer = self._member(peer_id)
        if peer is None or partition not in peer.replica.partitions:
            return False
        run = Run(task(partition, offset).first, count)
        grant = grant_claims.Grant(f"w{offset % 3}", lease_ms, (run,))
        return self._submit(peer, grant_claims.Args(partition, self._epoch(peer, partition, behind), (grant,)))

    def renew(self, peer_id: str, partition: int, offset: int, count: int, lease_ms: int) -> bool:
        """A leader extends the lease of a claim."""
        peer = self._member(peer_id)
        piece = self.held(peer, partition, offset) if peer is not None and partition in peer.led() else None
        if peer is None or piece is None:
            return False
        renewal = renew_claims.Renewal(piece[2], lease_ms, (Run(task(partition, offset).first, count),))
        return self._submit(peer, renew_claims.Args(partition, peer.replica.partitions[partition].epoch, (renewal,)))

    def release(self, peer_id: str, partition: int, offset: int, count: int, event: str) -> bool:
        """A leader ends a claim: ``done``, given ``back``, or to ``retry``."""
        peer = self._member(peer_id)
        piece = self.held(peer, partition, offset) if peer is not None and partition in peer.led() else None
        if peer is None or piece is None:
            return False
        runs = (Run(task(partition, offset).first, count),)
        release = release_claims.Release(piece[2], EVENTS[event], 0, 1, "", runs)
        return self._submit(peer, release_claims.Args(partition, peer.replica.partitions[partition].epoch, (release,)))

    def expire_claim(self, peer_id: str, partition: int, offset: int, count: int) -> bool:
        """A leader declares a claim over, whether its deadline has passed or not."""
        peer = self._member(peer_id)
        piece = self.held(peer, partition, offset) if peer is not None and partition in peer.led() else None
        if peer is None or piece is None:
            return False
        expiry = expire_claims.Expiry(piece[2], 1, (Run(task(partition, offset).first, count),))
        return self._submit(peer, expire_claims.Args(partition, peer.replica.partitions[partition].epoch, (expiry,)))

    # --- collecting garbage

    def gc(self, peer_id: str) -> bool:
        """A member starts a collection."""
        return self._submit(self._member(peer_id), collection())

    def look(self, peer_id: str) -> bool:
        """A collector reads the origin pointer; one that covers its collection already will do."""
        peer = self._able(peer_id)
        if peer is None or peer.captured is None or peer.captured.stored:
            return False
        origin, captured = self.log.origin, peer.captured
        captured.version = self.log.version
        captured.stored = origin is not None and self.log.records[origin.place - 1].position >= captured.position
        return True

    def store(self, peer_id: str) -> bool:
        """A collector that has looked stores its snapshot; if the pointer moved meanwhile it has to look again."""
        peer = self._able(peer_id)
        if peer is None or peer.captured is None or peer.captured.version < -1 or peer.captured.stored:
            return False
        captured = peer.captured
        data = snapshot.pack(captured.replica)
        captured.stored = self.log.store_origin(captured.place, data, expected_version=captured.version)
        if not captured.stored:
            self.probes.reached("two collectors raced for the pointer")
            captured.version = -2
        return True

    def trim(self, peer_id: str, count: int = 1_000_000) -> bool:
        """A collector deletes up to ``count`` records that the origin covers."""
        peer, origin = self._able(peer_id), self.log.origin
        if peer is None or peer.captured is None or not peer.captured.stored or origin is None:
            return False
        gone = self.log.trim(min(self.log.trimmed + count, origin.place))
        peer.captured.deleted += gone
        peer.captured.trimmed = self.log.trimmed >= origin.place
        return gone > 0

    def finish(self, peer_id: str) -> bool:
        """A collector that has trimmed says that the collection is over."""
        peer, origin = self._able(peer_id), self.log.origin
        if peer is None or peer.captured is None or not peer.captured.trimmed or origin is None:
            return False
        captured = peer.captured
        return self._submit(peer, finish_gc.Args(captured.position, captured.deleted, len(origin.data)))

    def collect(self, peer_id: str) -> bool:
        """A collector does all that is left to do."""
        looked, stored, trimmed = self.look(peer_id), self.store(peer_id), self.trim(peer_id)
        return self.finish(peer_id) or trimmed or stored or looked

    # --- time

    def wait(self, ms: int) -> bool:
        """True time passes; in a minute or more all that is on its way lands or is lost."""
        if ms >= LONG_MS:
            for peer in self.peers.values():
                peer.ghosts.clear()
                self.flush(peer.id)
        self.log.now_ms += ms
        return True

    def log_clock(self, ms: int) -> bool:
        """The log's clock jumps, forward or back."""
        self.log.ctime_offset_ms += ms
        return True

    def clock(self, node: str, ms: int) -> bool:
        """A node's clock jumps, forward or back."""
        self.skews_ms[node] = self.skews_ms.get(node, 0) + ms
        return True

    def segment(self) -> bool:
        """The log continues in a new segment."""
        self.log.open_segment()
        return True


_WORDS = (
    "start crash expire kill kill_all read alone react turn send beat land flush land_twice doubt skip lose late "
    "garbage ask leave evict abort slots drain append install tally ready settle give_up grant renew "
    "release expire_claim limit pause grant_limited reopen commit purge settle_part periodic fire rest force "
    "submit_job replace_job driver_ready commit_batch seal_input complete_job fail_job kill_job "
    "gc look store trim finish collect wait log_clock clock segment"
)
ACTIONS: dict[str, Callable[..., bool]] = {word.replace("_", "-"): getattr(Cluster, word) for word in _WORDS.split()}
"""Word -> what it does, as a method of `Cluster`."""


def parameters(word: str) -> list[inspect.Parameter]:
    """Return the parameters of an action after the cluster itself."""
    return list(inspect.signature(ACTIONS[word]).parameters.values())[1:]
