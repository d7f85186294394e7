"""A generated log with every kind of entry, the same for the same seed in every interpreter.

``python -m tests.entries.generated SEED RECORDS`` prints a digest of the replica at each
position, which `test_determinism` compares between processes.
"""

from __future__ import annotations

import hashlib
import sys
from random import Random
from typing import Any

from log_entries import (
    drain_node,
    expire_claims,
    finish_gc,
    gc,
    grant_claims,
    ready_partition,
    release_claims,
    renew_claims,
    replace_node,
    set_slots,
    settle_partition,
    yield_partition,
)
from log_entries.registry import VERSIONS
from onyxq.facts import RELEASED, RETRIED
from onyxq.ids import Run, TaskId, make_id, runs_of
from onyxq.replica import Replica
from onyxq.snapshot import pack
from tests.entries.world import START_MS, Ensemble, World, creation

PARTITIONS = 6
NODES = 5
ODDS = {"claims": 50, "partition": 20, "membership": 12, "node": 3, "garbage": 1, "repeat": 2, "gc": 1}


def generated_world(*, seed: int, records: int, check: bool = True) -> World:
    """A world with at least so many records."""
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
    """One random thing happens."""
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
    """Peers start, stop and crash; those that live say what they owe."""
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
        choices = [drain_node.Args(node, random.random() < 0.5), replace_node.Args(node)]
        return random.choice([*choices, set_slots.Args(peer, random.randrange(8))])
    if kind == "partition":
        modules: list[Any] = [ready_partition, ready_partition, ready_partition, settle_partition, yield_partition]
        return random.choice(modules).Args(number, epoch)
    return _claims(replica, number, epoch, random)


def _claims(replica: Replica, number: int, epoch: int, random: Random) -> Any:
    """Mostly grants; else something about claims that are held."""
    held = [
        (piece[2], run)
        for stretch, pieces in sorted(replica.claims.get(number, {}).items())
        for piece in pieces
        for run in runs_of(stretch, ((1 << piece[1]) - 1) << piece[0])
    ]
    if not held or random.random() < 0.5:
        grants = [grant_claims.Grant("w", random.randrange(1, 20_000), (_run(number, random),)) for _ in range(2)]
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
