"""A generated log with every kind of entry, which depends only on the seed.

``python -m tests.entries.generated SEED RECORDS`` prints a digest of the replica at each position.
`test_determinism` compares these between processes.
"""

from __future__ import annotations

import hashlib
import sys
from random import Random
from typing import Any

from pyrsistent import pmap

from log_entries import (
    begin_savepoint,
    commit_batch,
    commit_transaction,
    complete_job,
    drain_node,
    driver_ready,
    drop_savepoint,
    expire_claims,
    fail_job,
    finish_gc,
    fire_periodic,
    force_partition,
    gc,
    grant_claims,
    grant_limited_claims,
    hold_transactions,
    keep_savepoint,
    kill_job,
    pause_periodic,
    purge,
    ready_partition,
    release_claims,
    remove_periodic,
    renew_claims,
    reopen_tasks,
    replace_job,
    replace_node,
    replay_job,
    report_job,
    restore_job,
    seal_input,
    set_periodic,
    set_queue,
    set_slots,
    settle_partition,
    settle_transactions,
    submit_job,
    supersede_driver,
    yield_partition,
)
from log_entries.begin_savepoint import savepoint_of
from log_entries.registry import VERSIONS
from onyxq.core.facts import RELEASED, RETRIED
from onyxq.core.ids import Run, TaskId, make_id, runs_of
from onyxq.core.jobs.lifetime import active
from onyxq.core.replica import Job, Replica
from onyxq.core.snapshot import pack
from onyxq.core.transactions import Claim, Part, Prepared
from tests.entries.world import START_MS, Ensemble, World, creation

PARTITIONS = 6
NODES = 5
ODDS = {
    "claims": 50,
    "partition": 20,
    "membership": 12,
    "transaction": 9,
    "queue": 5,
    "periodic": 4,
    "job": 17,
    "node": 3,
    "garbage": 1,
    "repeat": 2,
    "gc": 1,
}
QUEUES = ("mail", "bulk")


def generated_world(*, seed: int, records: int, check: bool = True) -> World:
    """Return a world with at least ``records`` records."""
    random = Random(seed)
    world = World(check=check)
    world.submit("founder", creation(partitions=PARTITIONS, enabled=VERSIONS.remove("set_slots")))
    ensemble = Ensemble(world)
    for number in range(3):
        ensemble.start(f"n{number}")
    ensemble.drain()
    while len(world.records) < records:
        world.now_ms += random.randrange(2_000)
        for sim in ensemble.living():
            sim.advance(world, random.choice([1, 5, 1000]))
        _act(ensemble, random)
    return world


def _act(ensemble: Ensemble, random: Random) -> None:
    """Do one random action."""
    kind = random.choices(list(ODDS), list(ODDS.values()))[0]
    world, living = ensemble.world, ensemble.living()
    if kind == "membership" or not living:
        _membership(ensemble, random)
    elif kind == "garbage":
        world.append(random.randbytes(30))
    elif kind == "repeat":
        world.append(world.records[-1 - random.randrange(min(9, len(world.records)))].data)
    else:
        args = _entry(world.now, kind, random)
        leaders = [sim for sim in living if _leads(world.now, sim.id, args)]
        random.choice(leaders if leaders and random.random() < 0.9 else living).append(world, args)


def _leads(replica: Replica, peer: str, args: Any) -> bool:
    found = replica.partitions.get(getattr(args, "partition", -1))
    return found is not None and found.leader == peer


def _membership(ensemble: Ensemble, random: Random) -> None:
    """Let peers start, stop and crash; live ones append the entries that they owe."""
    living = ensemble.living()
    chance = random.random()
    if chance < 0.2 or len(living) < 2:
        ensemble.start(f"n{random.randrange(NODES)}")
    elif chance < 0.3:
        random.choice(living).alive = False
    elif chance < 0.35:
        ensemble.stop(random.choice(living))
    for sim in ensemble.living():
        sim.act(ensemble.world, ensemble.pulses())


def _entry(replica: Replica, kind: str, random: Random) -> Any:
    """A random entry of a kind, mostly one that can apply."""
    number = random.randrange(PARTITIONS)
    epoch = replica.partitions[number].epoch - (random.random() < 0.05)
    if kind == "gc":
        taken = replica.snapshot
        return gc.Args() if taken.finished or random.random() < 0.3 else finish_gc.Args(taken.position, 3, 1_000)
    if kind == "node":
        node = f"n{random.randrange(NODES)}"
        peer = random.choice(sorted(replica.peers) or [""])
        choices: list[Any] = [drain_node.Args(node, random.random() < 0.5), replace_node.Args(node)]
        choices += [force_partition.Args(number, "ops"), hold_transactions.Args("ab"[number % 2], "a backup", 5_000)]
        return random.choice([*choices, set_slots.Args(peer, random.randrange(8))])
    if kind == "partition":
        modules: list[Any] = [ready_partition, ready_partition, ready_partition, settle_partition, yield_partition]
        return random.choice(modules).Args(number, epoch)
    others = {"queue": _queue, "periodic": _periodic, "job": _job, "transaction": _transaction}
    return others.get(kind, _claims)(replica, number, epoch, random)


def _claims(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Return mostly grants, otherwise entries about held claims."""
    held = _held(replica, number)
    if not held or random.random() < 0.5:
        grants = [grant_claims.Grant("w", random.randrange(1, 20_000), (_run(number, random),)) for _ in range(2)]
        if random.random() < 0.3:
            return grant_limited_claims.Args(number, epoch, random.choice(QUEUES), tuple(grants))
        return grant_claims.Args(number, epoch, tuple(grants))
    token, run = random.choice(held)
    part = (Run(TaskId(run.first), random.randint(1, run.count)),)
    chance = random.randrange(3)
    if chance == 0:
        return renew_claims.Args(number, epoch, (renew_claims.Renewal(token, 30_000, part),))
    if chance == 1:
        return expire_claims.Args(number, epoch, (expire_claims.Expiry(token, 1, part),))
    event = random.choice([RELEASED, RETRIED, release_claims.COMPLETED_EVENT])
    return release_claims.Args(number, epoch, (release_claims.Release(token, event, 0, 1, "", part),))


def _held(replica: Replica, number: int) -> list[tuple[int, Run]]:
    """Tokens and runs of a partition's claims."""
    return [
        (piece[2], run)
        for stretch, pieces in sorted(replica.claims.get(number, {}).items())
        for piece in pieces
        for run in runs_of(stretch, ((1 << piece[1]) - 1) << piece[0])
    ]


def _queue(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Limit, pause, resume or reset a queue."""
    if random.random() < 0.25:
        kept = sorted({make_id(START_MS, number, random.randrange(8), 1024 * random.randrange(2)) for _ in range(30)})
        return purge.Args(number, epoch, START_MS + random.randrange(1, 9), tuple(kept))
    if random.random() < 0.4:
        run = Run(_run(number, random).first, 1)
        return reopen_tasks.Args(number, epoch, START_MS, (reopen_tasks.Reopened(run, random.randrange(3)),))
    limits = {name: random.randrange(60) for name in ("concurrency", "rate") if random.random() < 0.5}
    limits = {name: 1_000 * value if name == "rate" else value for name, value in limits.items()}
    paused = {"paused": random.random() < 0.3}
    cleared = () if random.random() < 0.8 else ("retries", "grace_ms")
    return set_queue.Args(random.choice(QUEUES), pmap(limits), pmap(), pmap(paused), cleared, "ops", "")


def _periodic(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Set, fire, pause or remove a periodic task."""
    name = random.choice(("nightly", "hourly"))
    found = replica.periodic.get(name)
    now_ms = START_MS + replica.log_time_ms
    if found is None or random.random() < 0.3:
        limits = pmap({"retries": -1, "expires_after_ms": 9})
        schedule, options = random.choice((("0 4 * * *", pmap()), ("every 5s", limits)))
        return set_periodic.Args(name, "mail", schedule, "UTC", b"x", "bytes", 0, "all", False, now_ms, options)
    if random.random() < 0.6:
        return fire_periodic.Args(name, found.next_ms - (random.random() < 0.1), found.next_ms + 5_000, 1)
    return random.choice([pause_periodic.Args(name, not found.paused, now_ms), remove_periodic.Args(name)])


def _job(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Submit a job, or report something about one, or about a savepoint."""
    running = [one for _, one in sorted(replica.jobs.items()) if one.state == "running" and one.batch >= 0]
    if running and random.random() < 0.4:
        return _savepoint(replica, random.choice(running), random)
    name = f"j{random.randrange(12)}"
    found = replica.jobs.get(name)
    if found is None or random.random() < 0.2:
        submission = _submission(replica, name, random)
        under_way = active(replica)
        if under_way and random.random() < 0.3:
            return _replacing(random.choice(under_way), submission, random)
        return random.choice((submit_job.Args(*submission), replay_job.Args(*submission, begin=b"there")))
    version = found.version - (random.random() < 0.1)
    running = (supersede_driver if found.version % 2 else driver_ready).Args(name, version)
    said: list[Any] = [*[running] * 3, seal_input.Args(name, "in"), kill_job.Args(name)]
    said.append(report_job.Args(name, version, b"%d rows" % random.randrange(9)))
    said += [commit_batch.Args(name, version, found.batch + 1, b"here", ())] * 2
    return random.choice([*said, complete_job.Args(name, version), fail_job.Args(name, version, "no")])


def _replacing(earlier: Job, submission: tuple[Any, ...], random: Random) -> Any:
    """Submit a job in place of another, with its places or with its state."""
    resume = earlier.id if earlier.batch < 0 or random.random() < 0.5 else ""
    submitted = earlier.submitted - (random.random() < 0.1)
    return replace_job.Args(*submission, resume=resume, replaces=earlier.id, submitted=submitted)


def _submission(replica: Replica, name: str, random: Random) -> tuple[Any, ...]:
    least, share = random.randint(1, 3), random.choice((0, 0, 20, 60))
    scheduler = "percentage" if share else random.choice(("balanced", "greedy"))
    zones = ("z1",) if random.random() < 0.2 else ()
    beside = random.choice(sorted(replica.jobs)) if replica.jobs and random.random() < 0.3 else ""
    tasks = (("parse", random.randrange(3), 3, 0), ("count", 1, 0, 50))
    slots = (least, random.choice((0, least + 2)))
    named = (beside, ("in",), tasks, False, random.choice((0, 5_000)))
    return name, b"body", name.encode().ljust(16), scheduler, share, *slots, (), zones, *named


def _savepoint(replica: Replica, job: Job, random: Random) -> Any:
    """Begin a savepoint of a job, complete it, submit a job from it, or drop it."""
    name = f"s{random.randrange(2)}"
    one = savepoint_of(replica, name)
    if one is None or random.random() < 0.1:
        return begin_savepoint.Args(name, job.id)
    if random.random() < 0.2:
        return drop_savepoint.Args(name, one.position)
    if one.complete:
        submission = _submission(replica, f"r{random.randrange(9)}", random)
        return restore_job.Args(*submission, savepoint=name, position=one.position)
    job = replica.jobs.get(one.job, job)
    return keep_savepoint.Args(name, one.position, job.version, job.batch, b"there", f"/{name}", 7)


def _transaction(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Commit a transaction over claims of two partitions, or settle a part of one."""
    if replica.transactions and random.random() < 0.6:
        name = random.choice(sorted(replica.transactions))
        part = random.choice(sorted(replica.transactions[name].parts))
        return settle_transactions.Args((name,), part, replica.partitions[part].epoch)
    claims = []
    for partition in sorted({number, random.randrange(PARTITIONS)}):
        held = _held(replica, partition)
        if held:
            token, run = random.choice(held)
            claims.append(Claim(partition, token, (run,)))
    needed = random.randint(0, len(claims))
    parts = tuple(Part(claim.partition, 1, b"digest") for claim in claims[needed:])
    deadline_ms = replica.log_time_ms + random.choice((0, 5_000, 60_000))
    name = f"t{random.randrange(20)}"
    commit = commit_transaction.Args(name, deadline_ms, tuple(claims[needed:]), tuple(claims[:needed]), parts, 9_000)
    running = sorted(job.id for job in replica.jobs.values() if job.state == "running")
    if not running or random.random() < 0.8:
        return commit
    job = replica.jobs[random.choice(running)]
    prepared = Prepared(*(getattr(commit, field) for field in Prepared._fields))
    return commit_batch.Args(job.id, job.version, job.batch + random.choice((0, 1, 1)), b"here", (prepared,))


def _run(number: int, random: Random) -> Run:
    offset, count = random.randrange(1000), random.randint(1, 24)
    return Run(make_id(START_MS, number, random.randrange(8), 1024 * random.randrange(2) + offset), count)


def digests(world: World) -> list[str]:
    """A digest of the packed replica at each position."""
    return [hashlib.sha256(pack(replica)).hexdigest() for replica in world.replicas]


if __name__ == "__main__":
    made = generated_world(seed=int(sys.argv[1]), records=int(sys.argv[2]), check=False)
    print(hashlib.sha256(b"".join(record.data for record in made.records)).hexdigest())
    print("\n".join(digests(made)))
