"""Extensions on real peers, in simulation: duties, failures, and requests of clients."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from attrs import frozen

from log_entries.registry import ENTRIES
from onyxq.client import Submitted
from onyxq.core.entry import APPLIED, Entries, Stamp
from onyxq.core.extensions import state_of, with_state
from onyxq.core.replica import Replica, first_peer
from onyxq.errors import BadRequest, ExtensionFailed, Forbidden, NotEnabled, NotFound, OnyxqError
from onyxq.system.extensions import Context, entry_of
from simulation.world.world import Options, SimulatedNode, World, simulate


@frozen
class Note:
    """A word, and how often it must be stored."""

    word: str
    times: int = 1
    raw: bytes = b""


@frozen
class Seal:
    """Submitted by peers only."""

    word: str


def note(replica: Replica, args: Note, stamp: Stamp) -> tuple[Replica, str]:
    """Add the word."""
    if args.word == "bug":
        raise ValueError(args.word)
    if not 0 < args.times < 100:
        return replica, "bad times"
    notes = state_of(replica, "notes")
    return with_state(replica, "notes", notes.set(args.word, (stamp.peer, args.times, args.raw))), APPLIED


def seal(replica: Replica, args: Seal, stamp: Stamp) -> tuple[Replica, str]:
    """Mark the word."""
    notes = state_of(replica, "notes")
    if args.word not in notes:
        return replica, "no such word"
    return with_state(replica, "notes", notes.set(args.word, ("sealed", 0, b""))), APPLIED


def sealing(replica: Replica, me: str) -> list[str]:
    """Return the duty of the first peer to seal every word that begins with an x."""
    notes = state_of(replica, "notes")
    open_ones = [word for word in sorted(notes) if word.startswith("x") and notes[word][0] != "sealed"]
    return open_ones if first_peer(replica) == me else []


Run = Callable[[str, Context], Awaitable[None]]


async def seal_it(word: str, context: Context) -> None:
    """Seal the word, as the duty requires."""
    assert await context.submit(Seal(word)) == APPLIED


def notes(run: Run = seal_it) -> Entries:
    """Return OnyxQ's entries with the extension."""
    adding = SimpleNamespace(VERSION=1, Args=Note, apply=note, SUBMIT=True, __doc__="Notes a word.")
    marking = SimpleNamespace(VERSION=1, Args=Seal, apply=seal, duties=sealing, run=run, __doc__="Seals a word.")
    return Entries([*ENTRIES.values(), entry_of("notes.add", adding), entry_of("notes.seal", marking)])


def running(workload: Callable[[World], Awaitable[None]], entries: Entries, *, seed: int = 1, nodes: int = 3) -> None:
    """Simulate a workload where every node has the extension."""
    simulate(workload, seed=seed, options=Options(nodes=nodes, entries=entries))


def state(world: World) -> Any:
    """Return the extension's state."""
    return state_of(world.audit.replica, "notes")


def first(world: World) -> SimulatedNode:
    """Return the node of the ring's first peer."""
    peer = first_peer(world.audit.replica)
    return next(node for node in world.nodes if node.peer_id == peer)


async def refused(call: Callable[[], Awaitable[Any]]) -> OnyxqError:
    """Return the error of a call."""
    with pytest.raises(OnyxqError) as error:
        await call()
    return error.value


def test_a_client_submits_and_reads_back_through_any_peer() -> None:
    """The state is not older than the seen position; bytes and tuples have their msgpack form."""

    async def workload(world: World) -> None:
        for node in world.nodes:
            async with world.client(nodes=[node]) as one, world.client() as other:
                done = await one.client.submit_entry("notes.add", {"word": node.name, "raw": b"\x00"})
                assert isinstance(done, Submitted) and done.applied
                found = await other.client.extension("notes", seen=done.position)
                assert found[node.name][1:] == [1, b"\x00"]
                listed = await one.client.submit_entry("notes.add", [node.name, 1000, b""])
                assert (listed.applied, listed.verdict) == (False, "bad times")
        assert sorted(state(world)) == ["n0", "n1", "n2"]

    running(workload, notes())


def test_bad_requests_name_what_is_wrong() -> None:
    """They do not reach the log."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            submit, read = client.client.submit_entry, client.client.extension
            cases: list[tuple[Any, type[OnyxqError], str | None, str]] = [
                (lambda: submit("notes.take", {}), NotFound, "entry", "no entry 'notes.take'"),
                (lambda: submit("gc", {}), Forbidden, "entry", "gc is not submitted by clients"),
                (lambda: submit("notes.seal", {"word": "a"}), Forbidden, "entry", "notes.seal"),
                (lambda: submit("notes.add", {}), BadRequest, "word", "word: is missing"),
                (lambda: submit("notes.add", {"word": 1}), BadRequest, "word", "str expected"),
                (
                    lambda: submit("notes.add", {"word": "a", "size": 1}),
                    BadRequest,
                    "size",
                    "is not one of word, times",
                ),
                (lambda: submit("notes.add", {"word": "a", "times": True}), BadRequest, "times", "int expected"),
                (lambda: submit("notes.add", {"word": "a", "times": 1 << 63}), BadRequest, "times", "out of range"),
                (lambda: submit("notes.add", ["a"]), BadRequest, "args", "3 arguments expected"),
                (lambda: client.client.call("submit", {"entry": "notes.add", "args": 7}), BadRequest, "args", ""),
                (lambda: client.client.call("submit", {"entry": 7}), BadRequest, "entry", "string"),
                (lambda: read("nothing"), NotFound, "name", "no extension 'nothing'"),
            ]
            before = world.backend.following
            for call, kind, field, told in cases:
                error = await refused(call)
                assert (type(error), error.field) == (kind, field) and told in error.message, error
            assert world.backend.following == before
            assert await read("notes") == {}

    running(workload, notes())


def test_an_extension_is_installed_peer_by_peer() -> None:
    """It cannot be used before the last peer has it, and then works without any restart."""

    async def workload(world: World) -> None:
        old, *others = world.nodes
        for node in world.nodes:
            node.entries = ENTRIES if node is old else notes()
            world.start_node(node)
            await world.settle()
        async with world.client(nodes=others) as client:

            async def add() -> Submitted:
                return await client.client.submit_entry("notes.add", {"word": "a"})

            error = await refused(add)
            assert isinstance(error, NotEnabled) and "notes.add" in error.message
            await world.stop_node(old)
            await world.until(lambda: "notes.add" in world.audit.replica.enabled, "it is enabled")
            assert (await add()).applied
            old.may_end = True
            world.start_node(old)
            with trio.fail_after(30):
                await old.ended.wait()
            assert old.error is not None and old.error.code == "older_than_cluster"
            assert "extension notes" in old.error.message
        old.entries, old.may_end = notes(), False
        await world.bring_back(old)

    simulate(workload, seed=3, options=Options(entries=notes()), started=False)


def test_a_duty_moves_with_what_it_follows_from() -> None:
    """The first peer has it; when that dies the next one has it, until it is done."""
    ran: list[tuple[str, str]] = []
    stopped: list[str] = []

    async def run(word: str, context: Context) -> None:
        ran.append((context.me, word))
        try:
            while len({me for me, _ in ran}) < 2:
                await context.changed()
            await context.submit(Seal(word))
        finally:
            stopped.append(context.me)

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "plain"})
            assert ran == []
            await client.client.submit_entry("notes.add", {"word": "x"})
            await world.until(lambda: len(ran) == 1, "the duty runs")
            before = first(world)
            assert ran == [(before.peer_id, "x")]
            await world.crash_node(before)
            await world.until(lambda: state(world)["x"][0] == "sealed", "the next one seals it")
            assert len(ran) == 2 and ran[1][0] == first(world).peer_id
            await world.until(lambda: len(stopped) == 2, "the duty is gone")
            await world.bring_back(before)
            assert len(ran) == 2

    running(workload, notes(run))


def test_a_duty_that_fails_is_tried_again_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is retried with growing pauses, ten times in a row; its peer continues."""
    failed: list[float] = []

    async def run(word: str, context: Context) -> None:
        failed.append(trio.current_time())
        raise RuntimeError("this duty fails")

    async def workload(world: World) -> None:
        before = first(world).peer_id
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "x"})
            await trio.sleep(150)
            assert (await client.client.submit_entry("notes.add", {"word": "a"})).applied
        assert first(world).peer_id == before

    with caplog.at_level(logging.CRITICAL, "onyxq.node.extension_duties"):
        running(workload, notes(run))
    pauses = [round(after - one, 1) for one, after in zip(failed, failed[1:], strict=False)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_duty_waits_while_the_log_is_away() -> None:
    """For any duration, this counts as one failure at most."""
    tries: list[str] = []

    async def run(word: str, context: Context) -> None:
        tries.append(word)
        await context.sleep(10.0)
        await context.submit(Seal(word))

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "x"})
            await trio.sleep(5)
            world.log_down()
            await trio.sleep(600)
            world.log_up()
            await world.until(lambda: state(world)["x"][0] == "sealed", "it is sealed")
        assert len(tries) <= 2

    running(workload, notes(run))


def test_a_duty_that_fails_while_it_is_cancelled_harms_nobody() -> None:
    """This holds for any error that it raises while it ends."""

    async def run(word: str, context: Context) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(context.sleep, 3600.0)
                await context.submit(Seal(word))
                await context.sleep(3600.0)
        finally:
            raise RuntimeError("on the way out")

    async def workload(world: World) -> None:
        before = first(world).peer_id
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "x"})
            await world.until(lambda: state(world)["x"][0] == "sealed", "it is sealed")
            await trio.sleep(5)
        assert first(world).peer_id == before

    running(workload, notes(run))


def test_a_duty_submits_entries_of_its_own_extension_only() -> None:
    """It must not submit entries of OnyxQ."""
    from log_entries import gc

    errors: list[OnyxqError] = []

    async def run(word: str, context: Context) -> None:
        for args in (gc.Args(), "nothing"):
            errors.append(await refused(lambda args=args: context.submit(args)))
        assert context.wall_ms() > 0 and context.replica.position > 0
        await context.submit(Seal(word))

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "x"})
            await world.until(lambda: state(world)["x"][0] == "sealed", "it is sealed")

    running(workload, notes(run))
    assert [type(error) for error in errors] == [BadRequest, BadRequest]


def test_a_state_outlives_a_collection_and_a_restart_of_all() -> None:
    """It is in the snapshot from which peers start."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.client.submit_entry("notes.add", {"word": "kept", "raw": b"\xff"})
            await client.client.gc()
            for node in world.nodes:
                await world.crash_node(node)
            for node in world.nodes:
                world.start_node(node)
            await world.settle()
            assert (await client.client.extension("notes"))["kept"][1:] == [1, b"\xff"]

    running(workload, notes())


def test_a_bug_in_an_entry_ends_every_peer_with_its_name() -> None:
    """None applies it differently, and none starts again; a corrected version continues after it."""

    def careful(replica: Replica, args: Note, stamp: Stamp) -> tuple[Replica, str]:
        return (replica, "no such word") if args.word == "bug" else note(replica, args, stamp)

    adding = SimpleNamespace(VERSION=1, Args=Note, apply=careful, SUBMIT=True, __doc__="Notes a word.")
    corrected = Entries([*ENTRIES.values(), entry_of("notes.add", adding), notes()["notes.seal"]])

    async def workload(world: World) -> None:
        for node in world.nodes:
            node.entries, node.may_end = notes(), True
            world.start_node(node)
        await world.settle()
        async with world.client() as client:
            with trio.move_on_after(10):
                await refused(lambda: client.client.submit_entry("notes.add", {"word": "bug"}, timeout_ms=5_000))
        for node in world.nodes:
            with trio.fail_after(30):
                await node.ended.wait()
            assert isinstance(node.error, ExtensionFailed) and "notes.add" in node.error.message
            node.entries, node.may_end = corrected, False
        for node in world.nodes:
            world.start_node(node)
        await world.settle()
        async with world.client() as client:
            assert (await client.client.submit_entry("notes.add", {"word": "a"})).applied

    simulate(workload, seed=2, options=Options(entries=corrected), started=False)
