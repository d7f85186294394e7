"""Probes: counters of rare branches, which prove that runs reached them.

Only a name in the table of the run can be counted. A long run fails while a probe that it must reach is at zero: a
branch that is never reached is not tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Probes:
    """How often each name of a table was reached."""

    def __init__(self, names: Iterable[str]) -> None:
        self.counts = dict.fromkeys(names, 0)

    def reached(self, name: str) -> None:
        """Count one; raises `KeyError` for a name that is not in the table."""
        self.counts[name] += 1

    def add(self, other: Probes) -> None:
        """Add the counts of another run, which are of the same table."""
        for name, count in other.counts.items():
            self.counts[name] += count

    def unreached(self) -> list[str]:
        """Return the names at zero, in the order of the table."""
        return [name for name, count in self.counts.items() if not count]

    def table(self) -> str:
        """Return all counts, one per line."""
        return "\n".join(f"{count:9,}  {name}" for name, count in self.counts.items())


STANDARD = (
    "a deposed leader's grant",
    "a deposed leader's release",
    "a claim expired",
    "a claim was renewed",
    "a claim survived its leader",
    "a failed task was to be tried again",
    "a task was given back",
    "a stale token was refused",
    "a task was cancelled that a worker held",
    "a completion was taken under a lapsed token",
    "a lapsed claim was renewed",
    "a task was claimed before it was due",
    "a takeover during a takeover",
    "a takeover without its first leader",
    "a target changed before its copies had arrived",
    "a partition settled on other nodes",
    "a partition was given up",
    "a node was replaced",
    "a record was repeated",
    "a record landed after its writer had gone",
    "a peer left while it took another in",
    "a joiner waited in the queue",
    "a peer was put out by its node's next one",
    "everybody was gone",
    "a key's tasks were granted by one leader after the other",
    "a key's task was with a worker at a takeover",
    "a unique task got other data",
    "a dependency finished during a takeover",
    "a task failed with one that it depended on",
    "a task ran although one that it depended on had failed",
    "a task expired that nobody ran",
    "a limit was freed by an expiry",
    "a dead letter was requeued",
    "a dead letter was discarded",
    "a transaction was settled by a successor",
    "a periodic task was fired by a successor",
)
"""Probes of the standard workload."""
OTHERS = (
    "acknowledged tasks were purged",
    "something was kept below a watermark",
    "something that was kept was purged",
    "a task was sent again",
    "a purged task was sent again",
    "a gap in a peer's records",
    "a join was aborted",
    "an obsolete ready came late",
    "a trim under a reader",
    "an append with an unknown outcome",
    "an append that landed twice",
    "a record that landed only later",
    "the log's clock went back",
    "a peer left because of its clock",
    "a reopened task was granted by a successor",
    "a grant would have gone over a limit",
    "a limited grant came after a pause",
    "a periodic time was passed twice",
    "a flow was cancelled",
)
"""Probes of other simulated clusters."""
SEARCH = (
    # joins
    "a queued joiner went",
    "a prepared joiner went",
    "an accepted joiner went",
    "a helper went whose joiner was prepared",
    "a helper went whose joiner was accepted",
    "the successor of a stitch went",
    "the last member went while somebody joined",
    "a member left by itself while stitching",
    "three joiners waited in the queue",
    "a joiner was put back and prepared anew in the same entry",
    "a join was aborted",
    "an abort came too late",
    "a leave was repeated",
    "a peer was put out by its node's next one",
    "a new peer evicted one of its node that was joining",
    "a node is back while its last peer's pulse lives",
    "everybody died with joins in flight",
    "a live peer lost its session",
    "a peer read of its own leave",
    "two peers created a cluster",
    # outbox
    "a record was repeated",
    "a gap in a peer's records",
    "a repeat after a crash",
    "a record landed after its writer died",
    "a record landed after its writer had gone",
    "bytes that are no record",
    # partitions and claims
    "a deposed leader granted",
    "a leader of an old epoch granted",
    "a leader granted before it was ready",
    "a grant of what was taken",
    "a lease was renewed after its deadline",
    "a claim was declared over before its deadline",
    "a claim was changed under a token that had gone",
    "a claim survived its leader",
    "a partition was given up",
    "a partition settled on other nodes",
    "a node was replaced",
    "a node drained",
    "a partition had no live holder",
    "a partition was forced",
    "failed tasks were opened again",
    # limits, transactions, periodic tasks
    "what is purged was to be granted",
    "what is purged was to be kept",
    "what is claimed was to be purged",
    "a watermark was to sink",
    "a grant would have gone over a limit",
    "a limited grant came after a pause",
    "a transaction over several partitions",
    "a claim of a transaction did not stand",
    "a transaction came too late",
    "the name of a transaction came again",
    "a transaction survived a leader",
    "what a transaction held was to be changed",
    "a periodic time was passed twice",
    # garbage
    "a trim under a reader",
    "an obligation right after a trim",
    "a collector died before it moved the pointer",
    "a collector died before it had trimmed",
    "two collectors raced for the pointer",
    "a collection remembered a peer that had gone",
    "a collection during a join",
    "a collection was owed",
    "a collection was finished by another peer",
    "a collection while claims were held",
    "a collection while a transaction was under way",
    # programs and extensions
    "a version was enabled",
    "a version was to be enabled that not everybody knows",
    "an extension's entry came before it was enabled",
    "an extension's entry counted in version 1",
    "an extension's entry counted in version 2",
    "an obligation of an extension was met",
    "a process was older than the cluster",
    "a peer read that it is older than the cluster",
    # time
    "the log's clock went back",
    "the log's clock leapt",
    "a claim was held across a segment's end",
)
"""Probes of the search."""
JOBS = (
    "a job was submitted twice",
    "another job was submitted under a name that was taken",
    "a job that had ended was submitted again",
    "a job that a collection had taken was submitted again",
    "a name was free again",
    "a job was submitted beside another",
    "a driver that was replaced said something",
    "a driver that was replaced committed",
    "a batch was committed twice",
    "a job moved with what was sealed and committed",
    "a job was killed",
    "a job was replaced",
    "a job was to be replaced after its end",
    "a job completed",
    "a job failed",
    "a job waited",
    "a job that ran had to wait",
    "a job moved because its driver had gone",
    "a job moved to make room",
    "two jobs moved to make room for one",
    "a job's share changed while it ran",
    "a job moved twice",
)
"""Probes of the search with jobs."""
MOVES = (
    "a partition settled on other nodes",
    "a target changed before its copies had arrived",
    "a partition was forced",
    "a leader stored rows that a majority may lack",
    "a node offered rows that its leader lacked",
    "a node dropped a copy that moved away",
)
"""Probes of the search of facts with moves."""
TRANSACTIONS = (
    "a transaction of several partitions was committed",
    "a transaction was settled by a successor",
    "a transaction was refused for a claim",
    "a claim ended between prepare and commit",
    "a commit came after its deadline",
    "a repeat was committed again",
)
"""Probes of the search of facts with transactions."""

OF_WORLDS = (*STANDARD, *OTHERS)
OF_SEARCHES = tuple(dict.fromkeys((*SEARCH, *JOBS)))

WANTED: Mapping[str, tuple[tuple[str, ...], int]] = {
    "standard": (STANDARD, 500),
    "explorer": (SEARCH, 500),
    "jobs": (JOBS, 100),
}
"""Workload -> the probes that it must reach, and the number of runs that must have reached all of them."""
