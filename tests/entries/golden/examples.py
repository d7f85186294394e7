"""The contents of golden files: an example of each entry's newest version, and scripts of whole logs.

A new entry or version needs an example here, and a script that applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve
from pyrsistent import pmap

from log_entries import (
    abort_join_cluster,
    accept_join_cluster,
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
    leave_cluster,
    notify_join_cluster,
    pause_periodic,
    prepare_join_cluster,
    purge,
    raise_minimum,
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
from log_entries.registry import ENTRIES, VERSIONS
from onyxq.core.facts import RELEASED, RETRIED
from onyxq.core.ids import Run, id_at, make_id
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.transactions import Claim, Part, Prepared
from tests.entries.golden.batches import batch_log
from tests.entries.golden.jobs import job_log, replacing_log, replay_log, report_log, savepoint_log, superseding_log
from tests.entries.world import CLUSTER_ID, START_MS, World, creation, joining

FIRST = make_id(START_MS, 0, 0x0123456789ABCDEF, 0)
RUNS = (Run(FIRST, 3), Run(id_at(FIRST, 10), 1))

EXAMPLES: Mapping[str, Any] = {
    "create_cluster": creation(partitions=64, enabled=pmap({"gc": 1, "create_cluster": 2})),
    "prepare_join_cluster": prepare_join_cluster.Args(
        "p1",
        "n1",
        "10.0.0.1:7400",
        "10.0.0.1:7480",
        "zone-ü",
        4,
        ("gpu", "big"),
        pmap({"gc": 1, "accept": 300}),
        "p0",
        "s1",
    ),
    "notify_join_cluster": notify_join_cluster.Args("p1"),
    "accept_join_cluster": accept_join_cluster.Args("p1"),
    "abort_join_cluster": abort_join_cluster.Args("p1"),
    "leave_cluster": leave_cluster.Args("p1", "its pulse is gone"),
    "set_slots": set_slots.Args("p1", 65_536),
    "drain_node": drain_node.Args("n1", True),
    "replace_node": replace_node.Args("n1"),
    "raise_minimum": raise_minimum.Args("grant_claims", 2),
    "ready_partition": ready_partition.Args(7, 300),
    "settle_partition": settle_partition.Args(7, 300),
    "yield_partition": yield_partition.Args(7, 300),
    "grant_claims": grant_claims.Args(0, 5, (grant_claims.Grant("w1", 30_000, RUNS),)),
    "renew_claims": renew_claims.Args(0, 5, (renew_claims.Renewal(1 << 33, 30_000, RUNS),)),
    "release_claims": release_claims.Args(
        0, 5, (release_claims.Release(1 << 33, RETRIED, START_MS + 9, 2, "no route to host", RUNS),)
    ),
    "expire_claims": expire_claims.Args(0, 5, (expire_claims.Expiry(1 << 33, 2, RUNS),)),
    "force_partition": force_partition.Args(7, "ops"),
    "set_queue": set_queue.Args(
        "mail",
        pmap({"retries": -1, "rate": 1_500, "lease_ms": 60_000}),
        pmap({"on_dead": "stops"}),
        pmap({"paused": True}),
        ("grace_ms",),
        "ops",
        "the relay is down",
    ),
    "grant_limited_claims": grant_limited_claims.Args(0, 5, "mail", (grant_claims.Grant("w1", 30_000, RUNS),)),
    "reopen_tasks": reopen_tasks.Args(0, 5, START_MS + 9, (reopen_tasks.Reopened(RUNS[0], 26),)),
    "purge": purge.Args(0, 5, START_MS + 9, (FIRST, make_id(START_MS + 1, 0, 7, 1024))),
    "commit_transaction": commit_transaction.Args(
        "step-7",
        90_000,
        (Claim(0, 1 << 33, RUNS),),
        (Claim(0, 1 << 34, RUNS[1:]),),
        (Part(0, 3, b"0123456789abcdef"), Part(1, 1, b"fedcba9876543210")),
        120_000,
        b"note",
    ),
    "commit_batch": commit_batch.Args(
        "words-7",
        1 << 33,
        12,
        b'{"n": 12}',
        (Prepared("words-7/12", 90_000, (Claim(0, 1 << 34, RUNS),), (), (Part(1, 2, b"digest"),), 9_000, b"note"),),
    ),
    "hold_transactions": hold_transactions.Args("backup-1", "a backup", 60_000),
    "settle_transactions": settle_transactions.Args(("step-7",), 0, 5),
    "set_periodic": set_periodic.Args(
        "nightly",
        "mail",
        "30 4 * * mon-fri",
        "Europe/Berlin",
        b"{}",
        "json",
        -2,
        "all",
        True,
        START_MS + 9,
        pmap({"retries": -1, "backoff_ms": 5_000, "expires_after_ms": 3_600_000}),
    ),
    "pause_periodic": pause_periodic.Args("nightly", True, START_MS + 9),
    "remove_periodic": remove_periodic.Args("nightly"),
    "fire_periodic": fire_periodic.Args("nightly", START_MS + 9, START_MS + 99, 3),
    "submit_job": submit_job.Args(
        "words-7",
        b"\x82\xa2id\xa7words-7",
        b"0123456789abcdef",
        "percentage",
        40,
        2,
        8,
        ("big", "gpu"),
        ("zone-ü",),
        "lines",
        ("in", "more"),
        (("split", 1, 0, 50), ("count", 2, 4, 0)),
        True,
        86_400_000,
        "words-6",
    ),
    "replay_job": replay_job.Args(
        "words-8",
        b"\x82\xa2id\xa7words-8",
        b"0123456789abcdeg",
        "greedy",
        0,
        2,
        8,
        ("big",),
        ("zone-1",),
        "lines",
        ("more",),
        (("split", 1, 0, 50),),
        True,
        86_400_001,
        "words-6",
        b"places",
    ),
    "replace_job": replace_job.Args(
        "words-10",
        b"\x82\xa2id\xa8words-10",
        b"0123456789abcdei",
        "greedy",
        0,
        2,
        8,
        ("big",),
        ("zone-1",),
        "lines",
        ("more",),
        (("split", 1, 0, 50),),
        True,
        86_400_001,
        "words-7",
        "words-7",
        1 << 33,
    ),
    "driver_ready": driver_ready.Args("words-7", 1 << 33),
    "supersede_driver": supersede_driver.Args("words-7", 1 << 33),
    "seal_input": seal_input.Args("words-7", "in"),
    "kill_job": kill_job.Args("words-7"),
    "complete_job": complete_job.Args("words-7", 1 << 33),
    "fail_job": fail_job.Args("words-7", 1 << 33, "task count: no such column"),
    "report_job": report_job.Args("words-7", 1 << 33, b"rows: 7"),
    "begin_savepoint": begin_savepoint.Args("before-2.1", "words-7", "a request"),
    "keep_savepoint": keep_savepoint.Args("before-2.1", 1 << 33, 1 << 32, 40, b"places", "s3a://b/ü", 1 << 40),
    "drop_savepoint": drop_savepoint.Args("before-2.1", 1 << 33, "the disk is full", 1 << 32),
    "restore_job": restore_job.Args(
        "words-9",
        b"\x82\xa2id\xa7words-9",
        b"0123456789abcdeh",
        "greedy",
        0,
        2,
        8,
        ("big",),
        ("zone-1",),
        "lines",
        ("more",),
        (("split", 1, 0, 50),),
        True,
        86_400_001,
        "",
        "before-2.1",
        1 << 33,
    ),
    "gc": gc.Args(),
    "finish_gc": finish_gc.Args(1 << 33, 20_000, 64 << 20),
}
"""Name of an entry -> arguments of its newest version, all different from the defaults."""


def first_log() -> list[Record]:
    """Make a log with all entries of the first version: a cluster of three nodes from its creation to its end."""
    world = World()
    world.submit("founder", creation(partitions=2, enabled=VERSIONS.remove("set_slots")))
    world.join("a", "b", "c")
    world.submit("a", raise_minimum.Args("set_slots", 99), raise_minimum.Args("gc", 1))
    world.settle("a", "b", "c")
    world.submit("b", set_slots.Args("b", 9), set_slots.Args("b", 9), set_slots.Args("b", -1))
    _partitions(world)
    _claims(world)
    _membership(world)
    _odd_records(world)
    for peer in sorted(world.now.ring.members):
        world.submit(peer, leave_cluster.Args(peer, "the end"))
    return world.records


def _ready(world: World) -> None:
    for number in sorted(world.now.partitions):
        placed = world.now.partitions[number]
        if placed.leader and not placed.ready:
            world.submit(placed.leader, ready_partition.Args(number, placed.epoch))
        if placed.leader and placed.members != placed.target:
            world.submit(placed.leader, settle_partition.Args(number, placed.epoch))


def _partitions(world: World) -> None:
    """Let leaders change."""
    _ready(world)
    placed = world.now.partitions[1]
    world.submit("a", settle_partition.Args(1, placed.epoch), ready_partition.Args(9, 1))
    world.submit(placed.leader, yield_partition.Args(1, placed.epoch), yield_partition.Args(1, placed.epoch))
    _ready(world)


def _claims(world: World) -> None:
    """Make valid and invalid grants; renew, release, fail, complete and expire claims."""
    placed = world.now.partitions[0]
    leader, epoch = placed.leader, placed.epoch
    first, second = Run(FIRST, 6), Run(id_at(FIRST, 8), 4)

    def grant(*runs: Run, worker: str = "w1", lease_ms: int = 100, at: int = epoch) -> grant_claims.Args:
        return grant_claims.Args(0, at, (grant_claims.Grant(worker, lease_ms, runs),))

    world.submit(leader, grant(first, second), grant(Run(FIRST, 1), worker="w2"), grant(first, at=epoch - 1))
    token = world.now.position
    world.submit(leader, grant(Run(id_at(FIRST, 20), 5), worker="w2", lease_ms=5_000))
    later = world.now.position
    parts = (Run(FIRST, 2), Run(id_at(FIRST, 8), 1))
    world.submit(leader, renew_claims.Args(0, epoch, (renew_claims.Renewal(token, 40_000, parts),)))
    world.submit(leader, renew_claims.Args(0, epoch, (renew_claims.Renewal(later + 1, 40_000, parts),)))
    releases = (
        release_claims.Release(token, RELEASED, 0, 0, "", (Run(FIRST, 1),)),
        release_claims.Release(token, RETRIED, START_MS + 500, 1, "again", (Run(id_at(FIRST, 1), 1),)),
        release_claims.Release(later, release_claims.COMPLETED_EVENT, 0, 0, "", (Run(id_at(FIRST, 20), 2),)),
    )
    world.submit(leader, release_claims.Args(0, epoch, releases))
    expiries = (expire_claims.Expiry(token, 1, (first, second)), expire_claims.Expiry(later, 1, (second,)))
    world.submit(leader, expire_claims.Args(0, epoch, expiries))
    for _ in range(3):
        world.now_ms += 4_000
        world.submit(leader)
    world.submit(leader, expire_claims.Args(0, epoch, expiries))
    world.submit(leader, gc.Args())
    collected = world.now.position
    world.submit(leader, finish_gc.Args(token, 1, 1), finish_gc.Args(collected, 12, 3_000))
    world.submit(leader, finish_gc.Args(collected, 12, 3_000))


def _membership(world: World) -> None:
    """Abort, queue and refuse joins; drain, remove, return and replace nodes."""
    world.submit("d", joining("d", zone="z2"))
    world.submit("e", joining("e", zone="z2"))
    world.submit("d", abort_join_cluster.Args("d"), abort_join_cluster.Args("d"))
    world.settle("a", "b", "c", "e")
    old = joining("f")
    world.submit("f", type(old)(*[old.peer, old.node, old.address, old.http, "", 1, (), pmap({"gc": 1}), "", ""]))
    world.submit("b", drain_node.Args("node-b", False), drain_node.Args("nowhere", False))
    _ready(world)
    world.submit("c", leave_cluster.Args("b", "its pulse is gone"), leave_cluster.Args("b", "again"))
    world.settle("a", "c", "e")
    world.submit("c2", joining("c2", "node-c", previous="c"))
    world.settle("a", "c2", "e")
    for _ in range(14):
        world.now_ms += 4_900
        world.submit("a")
    world.submit("a", replace_node.Args("node-b"), replace_node.Args("node-a"))
    _ready(world)


def _odd_records(world: World) -> None:
    """Append repeats, gaps, garbage, records of strangers and other clusters, and malformed or disabled entries."""
    world.append(world.records[-1].data)
    world.submit("a", gc.Args(), number=world.now.outbox["a"] + 2)
    world.append(b"no record at all")
    world.submit("a", gc.Args(), cluster_id="another")
    world.submit("stranger", gc.Args())
    number = world.now.outbox["a"] + 1
    odd = [b"\x93\xa2gc\x01\x91\x07", b"\x93\xa2gc\x07\x90", b"\x93\xa5later\x01\x90", encode_entry(gc.Args(), ENTRIES)]
    world.append(encode_record(CLUSTER_ID, "a", number, world.now_ms, odd))


# --- queues, limits, transactions, periodic tasks -----------------------------------------------


def queue_log() -> list[Record]:
    """Make a log with ordering, limits and transactions, and entries of them that change nothing."""
    world = World()
    world.submit("founder", creation(partitions=2, enabled=VERSIONS))
    world.join("a", "b", "c")
    world.settle("a", "b", "c")
    _ready(world)
    _ready(world)  # settling has balanced the leaders
    _limits(world)
    _transactions(world)
    _reopened(world)
    _periodic(world)
    _forced(world)
    return world.records


def _set(queue: str, **settings: Any) -> set_queue.Args:
    kinds: dict[type, dict[str, Any]] = {int: {}, str: {}, bool: {}}
    for name, value in settings.items():
        kinds[type(value)][name] = value
    return set_queue.Args(queue, pmap(kinds[int]), pmap(kinds[str]), pmap(kinds[bool]), (), "ops", "because")


def _limits(world: World) -> None:
    """Set, limit, pause and resume a queue, and clear its settings."""
    leader, epoch = world.now.partitions[0].leader, world.now.partitions[0].epoch

    def grant(first: int, count: int, at: int = epoch) -> grant_limited_claims.Args:
        wanted = (grant_claims.Grant("w", 60_000, (Run(id_at(FIRST, first), count),)),)
        return grant_limited_claims.Args(0, at, "mail", wanted)

    world.submit("b", _set("mail", concurrency=6, rate=2_000, on_dead="stops"), _set("mail", concurrency=6))
    world.submit("b", _set("mail", speed=1), _set("mail", lease_ms=1), _set("mail", on_dead="maybe"), _set("", rate=1))
    world.submit(leader, grant(0, 2), grant(1, 1), grant(2, 1), grant(2, 1, epoch - 1))
    token = world.now.position
    for first, count in ((2, 5), (2, 2)):
        world.now_ms += 3_000
        world.submit(leader, grant(first, count))
    world.submit(leader, _released(epoch, token, 0, 1))
    world.submit("b", _set("mail", paused=True, archive=True))
    world.submit(leader, grant(0, 1))
    world.submit("b", set_queue.Args("mail", pmap(), pmap(), pmap({"paused": False}), ("rate", "concurrency"), "", ""))
    world.submit(leader, grant(0, 1))
    world.submit("b", set_queue.Args("mail", pmap(), pmap(), pmap(), ("archive", "on_dead"), "", ""))


def _released(epoch: int, token: int, first: int, count: int) -> release_claims.Args:
    release = release_claims.Release(token, RELEASED, 0, 0, "", (Run(id_at(FIRST, first), count),))
    return release_claims.Args(0, epoch, (release,))


def _transactions(world: World) -> None:
    """Commit, settle and repeat transactions, also stale and late ones; held tasks stay held."""
    placed, other = world.now.partitions[0], world.now.partitions[1]
    leader, epoch = placed.leader, placed.epoch
    runs = (Run(id_at(FIRST, 50), 4),)
    world.submit(leader, grant_claims.Args(0, epoch, (grant_claims.Grant("w", 60_000, runs),)))
    token = world.now.position
    claims = (Claim(0, token, runs),)
    parts = (Part(0, 4, b"digest"), Part(1, 2, b"other"))
    deadline_ms = world.now.log_time_ms + 60_000

    def commit(name: str, **changes: Any) -> commit_transaction.Args:
        return evolve(commit_transaction.Args(name, deadline_ms, claims, (), parts, 1_000, b"n"), **changes)

    world.submit("c", commit("t1", deadline_ms=0), commit("t1", parts=parts[1:]), commit("", parts=()))
    world.submit("c", commit("t1", require=(Claim(0, token + 1, runs),)), commit("t1"), commit("t1"))
    committed = world.now.position
    world.submit("c", commit("t2"), commit("t3", claims=(), require=claims, parts=()))
    world.submit(leader, _released(epoch, token, 50, 4), _released(epoch, committed, 50, 4))
    renewal = renew_claims.Renewal(committed, 1, runs)
    world.submit(leader, renew_claims.Args(0, epoch, (renewal,)))
    world.submit(leader, settle_transactions.Args(("t1", "t2"), 0, epoch), settle_transactions.Args(("t1",), 0, epoch))
    world.submit(other.leader, settle_transactions.Args(("t1",), 1, other.epoch), commit("t1"))
    world.submit("c", commit("t4", claims=(), parts=()))
    world.now_ms += 4_000
    world.submit("c", gc.Args())


def _reopened(world: World) -> None:
    placed = world.now.partitions[0]
    ids = tuple(reopen_tasks.Reopened(Run(id_at(FIRST, first), 2), 26) for first in (70, 80))
    world.submit(placed.leader, reopen_tasks.Args(0, placed.epoch, world.now_ms, ids))
    held = (reopen_tasks.Reopened(Run(id_at(FIRST, 2), 1), 1),)
    world.submit(placed.leader, reopen_tasks.Args(0, placed.epoch, world.now_ms, held))


def _periodic(world: World) -> None:
    """Set up, fire, pause, resume, change and remove periodic tasks."""
    nightly = set_periodic.Args("nightly", "mail", "0 4 * * *", "UTC", b"x", "bytes", 0, "once", False, START_MS + 10)
    world.submit("a", nightly, nightly, evolve(nightly, payload=b"y", next_ms=START_MS + 50))
    world.submit("a", evolve(nightly, name="other", missed="never"), evolve(nightly, name=""))
    world.submit("a", fire_periodic.Args("nightly", START_MS + 10, START_MS + 20, 1))
    world.submit("b", fire_periodic.Args("nightly", START_MS + 10, START_MS + 20, 1))
    world.submit("b", fire_periodic.Args("nightly", START_MS + 20, START_MS + 20, 1))
    world.submit("c", pause_periodic.Args("nightly", True, 0), pause_periodic.Args("nightly", True, 0))
    world.submit("c", pause_periodic.Args("nightly", False, START_MS + 40), pause_periodic.Args("none", False, 0))
    world.submit("c", evolve(nightly, schedule="every 5m", next_ms=START_MS + 60), remove_periodic.Args("none"))
    world.submit("c", evolve(nightly, name="weekly"), remove_periodic.Args("nightly"))


def _forced(world: World) -> None:
    """Force partitions after the loss of two of three nodes."""
    world.submit("a", force_partition.Args(0, "ops"), force_partition.Args(9, "ops"))
    world.submit("a", leave_cluster.Args("b", "gone"), leave_cluster.Args("c", "gone"))
    world.submit("a", force_partition.Args(0, "ops"), force_partition.Args(1, "ops"))
    _ready(world)
    world.join("b2")
    world.settle("a", "b2")
    _ready(world)


def purge_log() -> list[Record]:
    """Make a log with a rising watermark, refused purges, and entries that it refuses."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a")
    world.settle("a")
    _ready(world)
    placed = world.now.partitions[0]
    epoch, later = placed.epoch, make_id(START_MS + 1, 0, 7, 1024)
    grant = grant_claims.Args(0, epoch, (grant_claims.Grant("w", 60_000, (Run(FIRST, 2),)),))

    def to(before_ms: int, *keep: bytes, epoch: int = epoch, partition: int = 0) -> purge.Args:
        return purge.Args(partition, epoch, before_ms, keep)

    world.submit("a", grant)
    token = world.now.position
    world.now_ms += 60_000
    for _ in range(20):
        world.submit("a", set_slots.Args("a", 2))
        world.now_ms += 4_000
    world.submit("a", to(START_MS + 9, epoch=epoch + 1), to(START_MS + 9), to(START_MS + 9, partition=1))
    world.submit("a", to(START_MS + 9, FIRST[:19]), to(START_MS + 9, later, FIRST), to(START_MS, later))
    world.submit("a", to(world.now_ms), to(START_MS + 9, FIRST, later), to(START_MS + 9, FIRST, later))
    world.submit("a", to(START_MS + 8, FIRST), to(START_MS + 9, FIRST), to(START_MS + 10, FIRST, later))
    world.submit("a", to(START_MS + 20, FIRST), _released(epoch, token, 0, 2), to(START_MS + 20))
    world.submit("a", grant, reopen_tasks.Args(0, epoch, 0, (reopen_tasks.Reopened(Run(FIRST, 1), 1),)))
    return world.records


def hold_log() -> list[Record]:
    """Make a log with holds: refused transactions; holds extended, expired, ended, and of another name."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a")
    world.settle("a")

    def hold(for_ms: int, name: str = "b1") -> hold_transactions.Args:
        return hold_transactions.Args(name, "a backup", for_ms)

    def commit(name: str) -> commit_transaction.Args:
        return commit_transaction.Args(name, world.now.log_time_ms + 60_000, (), (), (), 1_000, b"n")

    world.submit("a", commit("t1"), hold(0), hold(600_001), hold(9, name=""), evolve(hold(9), why="w" * 201))
    world.submit("a", hold(5_000), commit("t1"), commit("t2"), hold(5_000, name="b2"))
    world.now_ms += 4_000
    world.submit("a", hold(5_000), commit("t2"))
    world.now_ms += 4_000
    world.submit("a", commit("t2"), hold(0, name="b2"))
    world.now_ms += 2_000
    world.submit("a", commit("t2"), hold(5_000, name="b2"), hold(0, name="b1"))
    world.submit("a", commit("t3"), hold(0, name="b2"), commit("t3"))
    return world.records


def periodic_log() -> list[Record]:
    """Make a log with periodic tasks whose runs have options: set, changed, refused and dropped."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a")
    world.settle("a")
    plain = set_periodic.Args("nightly", "mail", "0 4 * * *", "UTC", b"x", "bytes", 0, "once", False, START_MS + 10)

    def having(**options: int) -> set_periodic.Args:
        return evolve(plain, options=pmap(options))

    world.submit("a", having(retries=5), having(retries=5), having(retries=-1, backoff_ms=0, expires_after_ms=1))
    world.submit("a", fire_periodic.Args("nightly", START_MS + 10, START_MS + 20, 1), having(retries=0))
    world.submit("a", pause_periodic.Args("nightly", True, 0), evolve(having(retries=0), next_ms=START_MS + 30))
    world.submit("a", having(retries=-2), having(backoff_ms=-1), having(expires_after_ms=0), having(colour=1))
    world.submit("a", evolve(having(retries=1), missed="never"), having(retries=1), plain, plain)
    world.submit("a", having(retries=1), plain)
    return world.records


SCRIPTS: Mapping[str, Callable[[], list[Record]]] = {
    "first": first_log,
    "queues": queue_log,
    "purge": purge_log,
    "jobs": job_log,
    "batches": batch_log,
    "holds": hold_log,
    "reports": report_log,
    "replays": replay_log,
    "savepoints": savepoint_log,
    "superseding": superseding_log,
    "replacing": replacing_log,
    "periodic": periodic_log,
}
"""Name of a log's file -> function that makes its records."""
