"""The rare branches of the pure cluster that a search must reach; see `simulation.probes`."""

from __future__ import annotations

from simulation.probes import Probes
from simulation.search import jobs_model

PROBES = (
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
    "a new peer evicted the last one of its node",
    "a new peer evicted one of its node that was joining",
    "a node is back while its last peer's pulse lives",
    "everybody died with joins in flight",
    "a live peer lost its session",
    "a peer read of its own leave",
    "two peers created a cluster",
    # outbox
    "an outbox number came twice",
    "an outbox number left a gap",
    "a repeat after a crash",
    "a record landed after its writer died",
    "an entry of a peer that is not in the ring",
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
    "an absent node was replaced",
    "a node drained",
    "a partition had no live holder",
    "a partition was forced",
    "failed tasks were opened again",
    # limits, transactions, periodic tasks
    "what is purged was to be granted",
    "what is purged was to be kept",
    "what is claimed was to be purged",
    "a watermark was to sink",
    "a limit refused a grant",
    "a paused queue was granted",
    "a transaction over several partitions",
    "a claim of a transaction did not stand",
    "a transaction came too late",
    "the name of a transaction came again",
    "a transaction survived a leader",
    "what a transaction held was to be changed",
    "a time was to be fired twice",
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
PROBES_RUNS = 500
"""Number of runs that must have reached all of them."""


def pure_probes() -> Probes:
    """Return all of them, and those of jobs, at zero."""
    return Probes((*PROBES, *jobs_model.PROBES))
