"""The scripts of logs in which jobs start, move, report and end."""

from __future__ import annotations

from typing import Any

import attrs

from log_entries import (
    begin_savepoint,
    commit_batch,
    complete_job,
    drain_node,
    driver_ready,
    drop_savepoint,
    fail_job,
    gc,
    keep_savepoint,
    kill_job,
    leave_cluster,
    replace_job,
    replay_job,
    report_job,
    restore_job,
    seal_input,
    set_slots,
    submit_job,
    supersede_driver,
)
from onyxq.core.log.interface import Record
from tests.entries.world import World, creation, joining


def job(name: str, **changes: Any) -> submit_job.Args:
    """Return arguments that submit a job without special demands."""
    plain: dict[str, Any] = {
        "id": name,
        "body": name.encode(),
        "digest": name.encode().ljust(16, b"."),
        "scheduler": "balanced",
        "percentage": 0,
        "min_slots": 1,
        "max_slots": 0,
        "tags": (),
        "zones": (),
        "beside": "",
        "inputs": ("in",),
        "tasks": (),
        "own_host": False,
        "keep_ms": 60_000,
    }
    return submit_job.Args(**plain | changes)


def job_log() -> list[Record]:
    """Make a log with jobs of all schedulers at three peers: allocated, moved, refused, ended, forgotten."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.submit("c", joining("c", zone="z2"))
    world.settle("a", "b", "c")
    _submitted(world)
    _refused(world)
    _moved(world)
    _ended(world)
    return world.records


def _submitted(world: World) -> None:
    tasks = (("split", 1, 2, 0), ("count", 2, 0, 50))
    world.submit("a", job("one", tasks=tasks), job("two", scheduler="greedy", max_slots=3))
    world.submit("b", job("one", tasks=tasks), job("one", digest=b"another.........", min_slots=2))
    world.submit("b", job("share", scheduler="percentage", percentage=20), job("near", beside="two"))
    world.submit("c", job("far", zones=("z2",), own_host=True), job("tagged", tags=("gpu",)), job("big", min_slots=9))
    for name in ("one", "two", "far"):
        world.submit("a", driver_ready.Args(name, world.now.jobs[name].version))


def _refused(world: World) -> None:
    """One problem in each field."""
    world.submit("a", job(""), job("-"), job("x", body=b""), job("x", digest=b""), job("x", keep_ms=-1))
    world.submit("a", job("x", scheduler="fair"), job("x", percentage=5), job("x", min_slots=0))
    world.submit("a", job("x", min_slots=3, max_slots=2), job("x", tags=("",)), job("x", inputs=("in", "in")))
    world.submit("a", job("x", tasks=(("t", 5, 4, 0),)), job("x", tasks=(("t", 1, 0, 101),)))
    world.submit("a", job("x", beside="nobody"), job("x", resume="nobody"))
    version = world.now.jobs["one"].version
    world.submit("a", driver_ready.Args("one", version), driver_ready.Args("one", version - 1))
    world.submit("a", complete_job.Args("one", version - 1), fail_job.Args("none", 1, "no"), kill_job.Args("none"))
    world.submit("a", seal_input.Args("one", "in"), seal_input.Args("one", "in"), seal_input.Args("one", "out"))


def _moved(world: World) -> None:
    """Add and remove slots, drain a node, and end a peer."""
    world.submit("b", set_slots.Args("b", 6), set_slots.Args("b", 2))
    world.submit("a", set_slots.Args("a", 0))
    world.submit("a", set_slots.Args("a", 14))
    world.submit("b", drain_node.Args("node-b", False))
    world.submit("a", leave_cluster.Args("c", "its pulse is gone"))
    world.settle("a", "b")


def _ended(world: World) -> None:
    """Complete, fail and kill jobs; they are remembered for a while, then forgotten."""
    one, two = world.now.jobs["one"].version, world.now.jobs["two"].version
    world.submit("a", complete_job.Args("one", one), complete_job.Args("one", one), job("one"))
    world.submit("a", fail_job.Args("two", two, "x" * 8_193), fail_job.Args("two", two, "no such column"))
    world.submit("b", kill_job.Args("big"), kill_job.Args("big"), seal_input.Args("big", "in"))
    world.submit("a", gc.Args())
    world.submit("a", job("one"), job("one", digest=b"another........."), kill_job.Args("one"))
    world.submit("a", job("three", resume="one"))
    for _ in range(14):
        world.now_ms += 4_900
        world.submit("a")
    world.submit("a", gc.Args(), kill_job.Args("one"), job("one"))


def report_log() -> list[Record]:
    """Make a log with reports of jobs: of their driver, of one that was replaced, too large, after the end."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.settle("a", "b")
    world.submit("a", job("one"), job("two"))
    one, two = world.now.jobs["one"].version, world.now.jobs["two"].version
    world.submit("a", report_job.Args("one", one, b"7 rows"), report_job.Args("one", one - 1, b"8 rows"))
    world.submit("a", report_job.Args("none", one, b"7 rows"), report_job.Args("two", two, b"x" * 8_193))
    world.submit("a", report_job.Args("one", one, b"9 rows"), complete_job.Args("one", one))
    world.submit("a", kill_job.Args("two"), report_job.Args("two", two, b"x" * 8_192))
    world.submit("a", gc.Args(), report_job.Args("one", one, b"10 rows"))
    return world.records


def replay_log() -> list[Record]:
    """Make a log with jobs that begin at the places of another: started, repeated, refused, continued, ended."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.settle("a", "b")
    world.submit("a", job("one"))
    for batch in range(2):
        world.submit("a", commit_batch.Args("one", world.now.jobs["one"].version, batch, b"places %d" % batch, ()))
    world.submit("a", replay("two"), replay("two"), replay("two", digest=b"another.........", begin=b"places 1"))
    world.submit("b", replay("x", begin=b""), replay("x", resume="one"))
    world.submit("b", replay("x", min_slots=0), replay("one"))
    world.submit("b", replay("three", beside="two"), job("four", resume="two"))
    world.submit("a", commit_batch.Args("two", world.now.jobs["two"].version, 1, b"further", ()))
    world.submit("a", kill_job.Args("three"), gc.Args(), replay("three"))
    return world.records


def superseding_log() -> list[Record]:
    """Make a log with drivers that are superseded at their own peer: once, late, of no job, after the end."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.settle("a", "b")
    world.submit("a", job("one", own_host=True))
    old = world.now.jobs["one"].version
    world.submit("a", driver_ready.Args("one", old), supersede_driver.Args("one", old), driver_ready.Args("one", old))
    world.submit("a", supersede_driver.Args("one", old), commit_batch.Args("one", old, 0, b"late", ()))
    new = world.now.jobs["one"].version
    world.submit("a", driver_ready.Args("one", new), commit_batch.Args("one", new, 0, b"places", ()))
    world.submit("b", supersede_driver.Args("none", new), supersede_driver.Args("one", new))
    world.submit("a", kill_job.Args("one"), supersede_driver.Args("one", world.now.jobs["one"].version), gc.Args())
    return world.records


def replay(name: str, **changes: Any) -> replay_job.Args:
    """Return arguments that submit such a job at the place of a first batch."""
    plain = {field.name: getattr(job(name), field.name) for field in attrs.fields(submit_job.Args)}
    return replay_job.Args(**{**plain, "begin": b"places 0", **changes})


def replacing_log() -> list[Record]:
    """Make a log with jobs that replace others: with places, with state; repeated, refused, late, collected."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.settle("a", "b")
    world.submit("a", job("one"), job("two", keep_ms=0), job("far", zones=("nowhere",)))
    one, two = world.now.jobs["one"].version, world.now.jobs["two"].version
    world.submit("a", replacing(world, "x", "one", resume=""), replacing(world, "x", "none"))
    for batch in range(2):
        world.submit("a", commit_batch.Args("one", one, batch, b"places %d" % batch, ()))
    world.submit("b", replacing(world, "x", "one", resume="two"), replacing(world, "x", "one", submitted=1))
    world.submit("b", replacing(world, "x", "one", min_slots=0), replacing(world, "x", "one", beside="nobody"))
    world.submit("b", replacing(world, "two", "one"), replacing(world, "two", "one", digest=b"another........."))
    new = replacing(world, "new", "one")
    world.submit("b", new, new, replacing(world, "late", "one"), commit_batch.Args("one", one, 2, b"late", ()))
    world.submit("a", commit_batch.Args("new", world.now.jobs["new"].version, 2, b"further", ()))
    world.submit("a", replacing(world, "near", "far"), commit_batch.Args("two", two, 0, b"a state", ()))
    world.submit("b", replacing(world, "heir", "two", resume=""), gc.Args(), new, replacing(world, "late", "two"))
    world.submit("b", kill_job.Args("new"), gc.Args(), new, replacing(world, "late", "new"))
    return world.records


def replacing(world: World, name: str, earlier: str, **changes: Any) -> replace_job.Args:
    """Return arguments that submit such a job in place of another, which is as at the end of the log."""
    plain = {field.name: getattr(job(name), field.name) for field in attrs.fields(submit_job.Args)}
    known = world.now.jobs.get(earlier)
    submitted = -1 if known is None else known.submitted
    return replace_job.Args(**{**plain, "resume": earlier, "replaces": earlier, "submitted": submitted, **changes})


def savepoint_log() -> list[Record]:
    """Make a log with savepoints: begun, refused, completed, used, dropped, and one whose job ends too early."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a", "b")
    world.settle("a", "b")
    world.submit("a", job("one"), begin_savepoint.Args("first", "one"), job("far", zones=("nowhere",)))
    version = world.now.jobs["one"].version
    for batch in range(2):
        world.submit("a", commit_batch.Args("one", version, batch, b"places %d" % batch, ()))
    world.submit("a", begin_savepoint.Args("first", "one", "r1"), begin_savepoint.Args("first", "one", "r2"))
    at = world.now.position
    world.submit("b", begin_savepoint.Args("-", "one"), begin_savepoint.Args("x", "one", "r" * 201))
    world.submit("b", begin_savepoint.Args("x", "none"), begin_savepoint.Args("x", "far"))
    world.submit("b", _kept("first", at - 1, version), _kept("none", at, version), _kept("first", at, version - 1))
    world.submit("b", _kept("first", at, version, batch=0), _kept("first", at, version, batch=2))
    world.submit("b", _kept("first", at, version, offsets=b""), _kept("first", at, version, place=""))
    world.submit("b", _restored("two", "first", at))
    world.submit("b", _kept("first", at, version), _kept("first", at, version), _kept("first", at, version, place="/y"))
    world.submit("a", begin_savepoint.Args("first", "one", "r1"), begin_savepoint.Args("first", "one", "r2"))
    world.submit("a", _restored("two", "first", at - 1), _restored("x", "first", at, resume="one"))
    world.submit(
        "a", _restored("two", "first", at), _restored("two", "first", at), _restored("x", "first", at, body=b"")
    )
    world.submit("a", drop_savepoint.Args("first", at))
    world.submit("a", commit_batch.Args("two", world.now.jobs["two"].version, 0, b"further", ()))
    world.submit("b", drop_savepoint.Args("first", at - 1), drop_savepoint.Args("first", at, "x" * 8_193))
    world.submit("b", drop_savepoint.Args("first", at, "no", version))
    world.submit("b", drop_savepoint.Args("first", at), drop_savepoint.Args("first", at), _restored("two", "first", at))
    world.submit("b", begin_savepoint.Args("second", "one"))
    fourth = world.submit("b", begin_savepoint.Args("fourth", "one"), gc.Args()).replica.position
    world.submit("b", drop_savepoint.Args("fourth", fourth, "no", version - 1))
    world.submit("b", drop_savepoint.Args("fourth", fourth, "no", version))
    world.submit("b", kill_job.Args("one"), begin_savepoint.Args("third", "one"), _kept("second", at, version))
    world.settle("a", "b")
    world.submit("b", gc.Args(), begin_savepoint.Args("third", "one"))
    return world.records


def _kept(name: str, position: int, version: int, **changes: Any) -> keep_savepoint.Args:
    plain: dict[str, Any] = {"batch": 1, "offsets": b"places 1", "place": "/x", "size_bytes": 7}
    return keep_savepoint.Args(name, position, version, **{**plain, **changes})


def _restored(name: str, savepoint: str, position: int, **changes: Any) -> restore_job.Args:
    plain = {field.name: getattr(job(name), field.name) for field in attrs.fields(submit_job.Args)}
    return restore_job.Args(**{**plain, **changes, "savepoint": savepoint, "position": position})
