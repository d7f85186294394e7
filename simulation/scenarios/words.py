"""Records, rings, partitions and claims of the pure cluster in the words of scenario files (design: simulation)."""

from __future__ import annotations

from typing import Any

import attrs
from pyrsistent import PMap

from onyxq.core.ids import offset_of
from onyxq.core.replica import HELD_MS, Job, Replica
from onyxq.core.ring import watches
from onyxq.core.step import Step

QUIET_FIELDS = frozenset("address http zone slots tags versions enabled id reason origin_bytes".split())
QUIET_ENTRIES = frozenset({"create_cluster"})
SLOTS_SHOWN = "set_slots"
SHOWN_FIELDS = {
    "submit_job": ("id", "scheduler", "min_slots", "max_slots", "percentage", "zones", "beside"),
    "replace_job": ("replaces", "resume", "id", "scheduler", "min_slots", "max_slots", "percentage"),
}
"""Of entries with many arguments, those that people look for."""


def record_words(done: Step) -> list[str]:
    """A line for each entry of a record: position, writer, what it says and its verdict."""
    place = f"{_position(done.replica.position)} {done.peer or '?'}:"
    if done.problem:
        return [f"{place} record {done.number}: {done.problem}" if done.peer else f"{place} {done.problem}"]
    if not done.outcomes:
        return [f"{place} nothing"]
    return [f"{place} {_entry(outcome.name, outcome.args)}: {outcome.verdict}" for outcome in done.outcomes]


def _position(position: int) -> str:
    segment, place = position >> 31, position & ((1 << 31) - 1)
    return f"{segment}/{place}" if segment else str(place)


def _entry(name: str, args: Any) -> str:
    if name in QUIET_ENTRIES or not attrs.has(type(args)):
        return name
    if name in SHOWN_FIELDS:
        return " ".join([name, *(_value(getattr(args, one)) for one in SHOWN_FIELDS[name])])
    fields = [one.name for one in attrs.fields(type(args)) if one.name not in QUIET_FIELDS or name == SLOTS_SHOWN]
    return " ".join([name, *(_value(getattr(args, one)) for one in fields)])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return str(offset_of(value)) if len(value) == 20 else value.hex()
    if isinstance(value, tuple):
        return "(" + " ".join(_value(item) for item in value) + ")"
    if isinstance(value, PMap):
        return "(" + " ".join(f"{name}={_value(value[name])}" for name in sorted(value)) + ")"
    if isinstance(value, int) and value >> 31 > 0:
        return _position(value)
    return str(value) if value != "" else "-"


def cycle(replica: Replica) -> list[str]:
    """The members in the order in which they watch each other, the smallest first."""
    ring = replica.ring
    if len(ring.members) < 2:
        return sorted(ring.members)
    out = [min(ring.members)]
    while (following := ring.pairs.get(out[-1], "")) and following not in out:
        out.append(following)
    return out


def ring_words(replica: Replica) -> list[str]:
    """Who is in the ring, who is joining, and who watches whom."""
    ring = replica.ring
    out = ["ring: " + (" > ".join(cycle(replica)) or "nobody")]
    out += [f"  {host} takes in {joiner}, prepared" for host, joiner in sorted(ring.prepared.items())]
    out += [f"  {host} takes in {joiner}, notified" for host, joiner in sorted(ring.accepted.items())]
    if ring.queue:
        out.append("  queue: " + " ".join(ring.queue))
    watching = [
        f"{peer} watches {' and '.join(seen)}" for peer in sorted(replica.peers) if (seen := watches(replica, peer))
    ]
    if watching:
        out.append("  " + ", ".join(watching))
    return out


def partition_words(replica: Replica) -> list[str]:
    """A line for each partition."""
    out = []
    for number, found in sorted(replica.partitions.items()):
        members, target = " ".join(found.members) or "nobody", " ".join(found.target) or "nobody"
        moving = "" if members == target else f", to be on {target}"
        state = "ready" if found.ready else "not ready"
        out.append(f"partition {number}: on {members}{moving}; {found.leader or 'nobody'} leads, {state}")
    return out


def claims_words(replica: Replica) -> list[str]:
    """A line for each claim in flight."""
    out = [
        f"partition {number}: tasks {offset} to {offset + count - 1} of {worker}, token {_position(token)}, "
        + ("held" if deadline == HELD_MS else f"{deadline - replica.log_time_ms} ms left")
        for number, stretches in sorted(replica.claims.items())
        for _, pieces in sorted(stretches.items())
        for offset, count, token, worker, deadline in pieces
    ]
    return out or ["no claims"]


def job_words(replica: Replica) -> list[str]:
    """A line for each job, in the order of submission."""
    return [_job(job) for job in sorted(replica.jobs.values(), key=lambda job: job.submitted)] or ["no jobs"]


def _job(job: Job) -> str:
    if not job.driver:
        return f"job {job.id}: {job.state}" + (f", {job.why}" if job.why else "")
    ready = "ready" if job.ready else "not ready"
    sealed = f", sealed: {' '.join(job.sealed)}" if job.sealed else ""
    batch = f", batch {job.batch}" if job.batch >= 0 else ""
    return f"job {job.id}: {job.slots} slots of {job.driver}, version {_position(job.version)}, {ready}{sealed}{batch}"
