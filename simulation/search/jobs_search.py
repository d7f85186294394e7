"""The search with jobs: twenty of them under each scheduler while peers come and go (design: simulation).

As `simulation.search.search`, from which it takes whatever is not about jobs; claims, transactions and
queues are left to that one.  ``onyxq simulate --workload jobs --seed 7`` plays one run.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from attrs import evolve

from simulation.search.jobs import INPUTS, NOBODY, driven
from simulation.search.peer import Peer
from simulation.search.plan import Plan, plan_of
from simulation.search.search import Search, of_peer

JOBS = tuple(f"j{number}" for number in range(20))
KINDS = (("balanced",), ("greedy",), ("percentage",), ("balanced", "greedy", "percentage"))
"""Schedulers of a run's jobs: each alone, then all together."""
ODDS = {
    "submit": 20,
    "drive": 45,
    "seal": 4,
    "end": 4,
    "kill-job": 2,
    "slots": 10,
    "drain": 1.5,
    "gc": 3,
    "idle": 3,
    "replace": 3,
}
"""How often each kind of move is made that is not as in other searches; none of what is not in here or in `KEPT`."""
KEPT = frozenset(
    "turn read react send land beat doubt land-twice skip lose late garbage alone sleep wake lead give-up start crash "
    "expire kill kill-all leave evict abort install race look store trim finish wait log-clock clock segment".split()
)


def job_plan_of(seed: int) -> Plan:
    """Return the cluster and the odds of a seed."""
    plan = plan_of(seed)
    draw = Random(f"jobs {seed}")
    nodes = draw.choice((3, 4, 5, 5, 7))
    odds = {move: odd for move, odd in plan.odds.items() if move in KEPT}
    odds |= {move: odd * draw.choice((0.3, 1.0, 1.0, 3.0)) for move, odd in ODDS.items()}
    options = evolve(plan.options, zones=draw.choice((1, 2, 3)), gc_records=draw.choice((100, 20_000)))
    return Plan(options, tuple("abcdefg"[:nodes]), odds, (draw.choice((0, 2)),) * nodes)


class JobSearch(Search):
    """The search from one seed."""

    steps: ClassVar[int] = 4_000

    def __init__(self, seed: int) -> None:
        super().__init__(seed, job_plan_of(seed))
        self.kinds = KINDS[seed % len(KINDS)]
        self.left = list(reversed(JOBS))
        """Jobs that are not submitted yet."""

    def _name(self) -> str:
        return JOBS[self._below(len(JOBS))]

    @of_peer
    def _submit(self, peer: Peer) -> None:
        """A peer submits a job, again or for the first time, and at times another one under its name."""
        kind, least = self.kinds[self._below(len(self.kinds))], (1, 1, 1, 2, 2, 3, 4, 6)[self._below(8)]
        most = (0, least, least + 1, least + 4)[self._below(4)]
        share = 1 + self._below(60) if kind == "percentage" else 0
        zone = f"z{self._below(3)}" if self._random() < 0.15 else NOBODY
        beside = self._name() if self._random() < 0.15 else NOBODY
        keep_ms = (0, 2_000, 60_000)[self._below(3)]
        other = int(self._random() < 0.1)
        name = self.left[-1] if self.left else self._name()
        if self._do("submit-job", peer.id, name, kind, least, most, share, zone, beside, keep_ms, other):
            self.left = self.left[:-1]
        self._say(peer)

    def _say(self, peer: Peer) -> None:
        """Most often what a peer has to say is written at once."""
        if self._random() < 0.8 and self._do("send", peer.id):
            self._do("land", peer.id)

    def _driver(self) -> tuple[Peer, str] | None:
        """Return a peer that takes itself for the driver of a job, and the job; now and then another peer."""
        peer = self._peer()
        if peer is None or not peer.replica.jobs:
            return None
        if self._random() < 0.5:
            self._do("read", peer.id, 50)
        jobs = driven(peer)
        if self._random() < 0.05 or not jobs:
            jobs = sorted(peer.replica.jobs)
        return (peer, jobs[self._below(len(jobs))]) if jobs else None

    def _drive(self) -> None:
        """A driver says that its job runs, or commits a batch of it."""
        found = self._driver()
        if found is None:
            return
        peer, name = found
        behind = 1 + self._below(30) if self._random() < 0.05 else 0
        if not peer.replica.jobs[name].ready and self._random() < 0.8:
            self._do("driver-ready", peer.id, name, behind)
        else:
            ahead = 1 if self._random() < 0.9 else self._below(4) - 1
            self._do("commit-batch", peer.id, name, ahead, behind)
        self._say(peer)

    def _end(self) -> None:
        """A driver says that its job is done, or has failed."""
        found = self._driver()
        if found is not None:
            peer, name = found
            behind = 1 + self._below(30) if self._random() < 0.2 else 0
            self._do(("complete-job", "fail-job")[self._below(2)], peer.id, name, behind)
            self._say(peer)

    @of_peer
    def _seal(self, peer: Peer) -> None:
        what = INPUTS[self._below(len(INPUTS))] if self._random() < 0.95 else "out"
        self._do("seal-input", peer.id, self._name(), what)

    @of_peer
    def _replace(self, peer: Peer) -> None:
        """A peer replaces a job that it knows, mostly one that has not ended, and at times twice at once."""
        known = sorted(name for name, job in peer.replica.jobs.items() if job.state in ("waiting", "running"))
        if self._random() < 0.1 or not known:
            known = sorted(peer.replica.jobs)
        if not known:
            return
        earlier, taking = known[self._below(len(known))], ("places", "state")[self._below(2)]
        for _ in range(2 if self._random() < 0.2 else 1):
            name = self.left[-1] if self.left else self._name()
            least, keep_ms = (1, 1, 2, 4)[self._below(4)], (0, 2_000, 60_000)[self._below(3)]
            if self._do("replace-job", peer.id, earlier, name, taking, least, keep_ms) and self._random() < 0.9:
                self.left = self.left[:-1]
        self._say(peer)

    @of_peer
    def _kill_job(self, peer: Peer) -> None:
        self._do("kill-job", peer.id, self._name())
