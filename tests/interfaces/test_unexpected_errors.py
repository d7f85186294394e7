"""An unexpected error at any step of any method: no caller of a write hears that nothing was stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from functools import wraps
from itertools import count
from typing import Any

import pytest
import trio
from attrs import evolve

from log_entries import commit_batch, set_slots
from onyxq import HostSettings, errors
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import BadRequest, OnyxqError, Unknown
from onyxq.interfaces.daemon import Platform
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.jobs import encoding
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.leader.cohort.replication import Sender
from onyxq.leader.leader import PartitionLeader
from onyxq.log.outbox import Outbox
from onyxq.node.node import Node
from onyxq.operations.service import READS, Service, changes_nothing
from onyxq.store.lmdb_store import LmdbStore
from onyxq.system import failures
from onyxq.wire.memory import HOST, MemoryNetwork

KINDS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError)
STEPS_MAX = 200
"""Of one method; the search for steps ends there."""
CALLBACK = {"transport": "http", "method": "post", "uri": "http://127.0.0.1:9/never"}


class Injection:
    """Raises an error at the n-th step that the request under test takes."""

    def __init__(self, at: int, error: Exception, *, effects_only: bool = False) -> None:
        self.left = at
        self.error = error
        self.effects_only = effects_only
        """Count only steps that change something, once each has been taken."""
        self.step = ""

    def taken(self, step: str, *, changes: bool) -> None:
        """A step is about to be taken (one that ``changes`` something: has been)."""
        if self.step or (self.effects_only and not changes):
            return
        self.left -= 1
        if not self.left:
            self.step = step
            raise self.error


armed: ContextVar[Injection | None] = ContextVar("armed", default=None)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every use of the store, the outbox and replication by a request is a step."""

    def watch(owner: type, name: str, *, changes: bool) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def step(*args: Any, **kwargs: Any) -> Any:
            injection = armed.get()
            if injection is None:
                return real(*args, **kwargs)
            if not changes:
                injection.taken(f"{owner.__name__}.{name}", changes=False)
                return real(*args, **kwargs)
            found = real(*args, **kwargs)
            injection.taken(f"{owner.__name__}.{name}", changes=True)
            return found

        monkeypatch.setattr(owner, name, step)

    for name in ("task_row", "covering", "known_bits", "finished_bits", "unique", "get", "page", "counts", "hours"):
        if hasattr(LmdbStore, name):
            watch(LmdbStore, name, changes=False)
    watch(Sender, "submit", changes=True)
    watch(PartitionLeader, "decide", changes=False)
    watch(Outbox, "_add", changes=True)
    watch(Node, "stepped", changes=False)

    start_soon = Node.start_soon

    def detached(self: Node, function: Callable[..., Any], *args: Any) -> None:
        # What the request leaves to the node is no step of it, but for parts of transactions on their way.
        context = copy_context()
        if function.__qualname__ != "ToLeader._flight":
            context.run(armed.set, None)
        context.run(start_soon, self, function, *args)

    monkeypatch.setattr(Node, "start_soon", detached)


class World:
    """A node whose methods are called directly."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.node = service.node
        self._serial = count(1)

    def id(self, partition: int = 1) -> TaskId:
        """A fresh id, first of its stretch."""
        return make_id(self.node.wall_ms(), partition, 0xBAD, 1024 * next(self._serial))

    def name(self) -> str:
        """A fresh name."""
        return f"n{next(self._serial)}"

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Call a method as a client or a peer does."""
        if method in self.service.peer_methods:
            return await self.service._perform(method, self.service.peer_methods[method], args)
        return await self.service.call(method, args)

    def run(self, **header: Any) -> list[Any]:
        """A run of one task."""
        return [self.id(), pack_task({"queue": "q"} | header, [b"x"])]

    async def stored(self, **header: Any) -> list[Any]:
        """A run that is stored."""
        run = self.run(**header)
        assert (await self.call("enqueue", {"runs": [run], "w": None}))["acks"] == [1]
        return run

    async def claimed(self, **header: Any) -> tuple[TaskId, int]:
        """Id and token of a task that is claimed."""
        queue = self.name()
        first, _ = await self.stored(queue=queue, **header)
        asked = {"queues": [queue], "max": 1, "lease_ms": 60_000, "wait_ms": 20_000, "worker": "w"}
        ((token, *_),) = (await self.call("claim", asked))["claims"]
        return first, token

    async def dead(self) -> TaskId:
        """A task that has failed for good."""
        first, token = await self.claimed(retries=0)
        await self.call("fail", {"items": [[first, 1, token, "broken", None]]})
        return first


def job(name: str) -> Job:
    """Submit a job that no peer can run."""
    catalog = [
        Input("in", queue="in"),
        Function("f", fn="os.path:basename"),
        Output("out", queue="out"),
    ]
    return Job(id=name, workflow=[("in", "f"), ("f", "out")], catalog=catalog)


def args(**said: Any) -> Callable[[World], Awaitable[dict[str, Any]]]:
    """Arguments that are always the same."""

    async def make(world: World) -> dict[str, Any]:
        return said

    return make


def made(make: Callable[[World], dict[str, Any]]) -> Callable[[World], Awaitable[dict[str, Any]]]:
    """Arguments that need fresh names only."""

    async def made_now(world: World) -> dict[str, Any]:
        return make(world)

    return made_now


def held(pack: Callable[[TaskId, int], dict[str, Any]]) -> Callable[[World], Awaitable[dict[str, Any]]]:
    """Arguments about a task that is claimed."""

    async def make(world: World) -> dict[str, Any]:
        return pack(*await world.claimed())

    return make


def task(pack: Callable[[TaskId], dict[str, Any]]) -> Callable[[World], Awaitable[dict[str, Any]]]:
    """Arguments about a task that is stored."""

    async def make(world: World) -> dict[str, Any]:
        return pack((await world.stored())[0])

    return make


def dead(pack: Callable[[TaskId], dict[str, Any]]) -> Callable[[World], Awaitable[dict[str, Any]]]:
    """Arguments about a task that has failed for good."""

    async def make(world: World) -> dict[str, Any]:
        return pack(await world.dead())

    return make


async def transaction(world: World) -> dict[str, Any]:
    first, token = await world.claimed()
    complete = [[first, 1, token, None]]
    return {"name": world.name(), "complete": complete, "update": [], "enqueue": [world.run()], "require": []}


async def batch(world: World) -> dict[str, Any]:
    said = {"name": world.name(), "enqueue": [world.run()], "complete": []}
    prepared = await world.call("jobs.prepare", {"job": "", "version": -1, **said})
    return {"name": world.name(), "job": "", "version": -1, "prepared": [prepared["prepared"]], "complete": []}


async def some_timer(world: World) -> dict[str, Any]:
    return {"id": world.name(), "timeout": 3_600_000, "data": None, "callback": CALLBACK}


async def known_timer(world: World) -> dict[str, Any]:
    said = await some_timer(world)
    await world.call("timer.set", said)
    return {"id": said["id"]}


def some_flow(world: World) -> dict[str, Any]:
    return {"id": world.id(), "tasks": [{"queue": "q"}, {"queue": "q", "after": [0]}]}


async def known_flow(world: World) -> dict[str, Any]:
    said = some_flow(world)
    await world.call("flow.make", said)
    return {"id": said["id"]}


async def known_periodic(world: World) -> dict[str, Any]:
    name = world.name()
    await world.call("periodic.set", {"name": name, "queue": "q", "schedule": "0 4 * * *"})
    return {"name": name}


async def known_job(world: World) -> dict[str, Any]:
    name = world.name()
    await world.call("job.submit", {"body": encoding.encode(job(name))})
    return {"id": name}


async def replayable(world: World) -> dict[str, Any]:
    files = [Input("in", format="text", path="/in"), *job("").catalog[1:]]
    name = world.name()
    await world.call("job.submit", {"body": encoding.encode(evolve(job(name), catalog=files))})
    return {"id": name, "from_start": True, "outputs": {"out": "again"}}


async def hosted(world: World) -> dict[str, Any]:
    name = world.name()
    waiting = evolve(job(name), own_host=True, host=HostSettings(submit_wait_ms=1_000))
    await world.call("job.submit", {"body": encoding.encode(waiting)})
    return {"id": name, "host": "h", "wait_ms": 0}


async def sealed(world: World) -> dict[str, Any]:
    return {**await known_job(world), "input": "in"}


async def saved_job(world: World) -> str:
    """Return a job that only formally runs, and has committed a batch."""
    node, name = world.node, "saved"
    if name not in node.replica.jobs:
        (peer,) = node.replica.ring.members
        await world.call("job.submit", {"body": encoding.encode(job(name))})
        await node.verdicts([set_slots.Args(peer, 500)])
        await node.verdicts([commit_batch.Args(name, node.replica.jobs[name].version, 0, b"so far", ())])
    return name


async def new_savepoint(world: World) -> dict[str, Any]:
    return {"id": await saved_job(world), "name": world.name(), "wait_ms": 0}


async def begun_savepoint(world: World) -> dict[str, Any]:
    made = await world.call("job.savepoint", await new_savepoint(world))
    return {"name": made["name"], "position": made["position"], "version": world.node.replica.jobs["saved"].version}


async def kept_savepoint(world: World) -> dict[str, Any]:
    more = {"batch": 0, "offsets": b"so far", "place": "/there", "size_bytes": 1}
    return {**await begun_savepoint(world), **more}


async def dropped_savepoint(world: World) -> dict[str, Any]:
    return {**await begun_savepoint(world), "why": "the disk is full"}


async def known_savepoint(world: World) -> dict[str, Any]:
    return {"name": (await begun_savepoint(world))["name"]}


ONE = {"client": 7}
CALLS: dict[str, Callable[[World], Awaitable[dict[str, Any]]]] = {
    "enqueue": made(lambda world: {"runs": [world.run(), world.run(priority=3)], "w": 1}),
    "complete": held(lambda first, token: {"items": [[first, 1, token, None, [b"ok"]]]}),
    "fail": held(lambda first, token: {"items": [[first, 1, token, "no", 1_000]]}),
    "renew": held(lambda first, token: {"items": [[first, 1, token, 60_000]]}),
    "give_up": held(lambda first, token: {"items": [[first, 1, token, "no"]]}),
    "postpone": held(lambda first, token: {"items": [[first, 1, token, "later", 1_000]]}),
    "release": held(lambda first, token: {"items": [[first, 1, token]]}),
    "update": held(lambda first, token: {"items": [[first, token, 0, b"half"]]}),
    "cancel": task(lambda first: {"ids": [first]}),
    "dead": args(),
    "dead.requeue": dead(lambda first: {"ids": [first]}),
    "dead.discard": dead(lambda first: {"ids": [first]}),
    "ids": args(count=2),
    "request.remember": args(key=bytes(16), request={"body": bytes(16), "at_ms": 1, "partitions": [0]}),
    "routes": args(),
    "get": task(lambda first: {"id": first}),
    "task_log": task(lambda first: {"id": first}),
    "list": args(),
    "list.next": args(queue="a"),
    "count": args(),
    "queues": args(),
    "queues.page": args(wait_ms=0),
    "workers": args(),
    "rates": args(),
    "rates.history": args(),
    "task_history": task(lambda first: {"id": first}),
    "log": args(),
    "log.raw": args(),
    "origin": args(),
    "replica": args(),
    "replica.part": args(),
    "cluster": args(),
    "ring": args(),
    "partitions": args(),
    "peers": args(),
    "partition": args(partition=1),
    "transact": transaction,
    "tasks.bodies": task(lambda first: {"runs": [[first, 1]]}),
    "jobs.prepare": made(lambda w: {"job": "", "version": -1, "name": w.name(), "enqueue": [w.run()], "complete": []}),
    "jobs.commit": batch,
    "queue.purge": task(lambda _: {"queue": "q"}),
    "queue.set": made(lambda world: {"queue": world.name(), "retries": 3}),
    "queue.get": args(queue="q"),
    "periodic.set": made(lambda world: {"name": world.name(), "queue": "q", "schedule": "0 4 * * *"}),
    "periodic.get": known_periodic,
    "periodic.list": args(),
    "periodic.remove": known_periodic,
    "flow.make": made(some_flow),
    "flow.get": known_flow,
    "flow.list": args(),
    "flow.wait": known_flow,
    "flow.cancel": known_flow,
    "flow.requeue": known_flow,
    "timer.set": some_timer,
    "timer.get": known_timer,
    "timer.cancel": known_timer,
    "timer.list": args(),
    "job.submit": made(lambda world: {"body": encoding.encode(job(world.name()))}),
    "job.replay": replayable,
    "job.kill": known_job,
    "job.host": hosted,
    "job.seal": sealed,
    "job.savepoint": new_savepoint,
    "job.savepoints": args(),
    "job.savepoint_delete": known_savepoint,
    "jobs.savepoints": args(),
    "jobs.keep_savepoint": kept_savepoint,
    "jobs.drop_savepoint": dropped_savepoint,
    "job.list": args(),
    "job.get": known_job,
    "job.letters": known_job,
    "job.requeue": known_job,
    "taskstore.update": args(**ONE, adds=[["g", "data", 0]]),
    "taskstore.claim": args(**ONE, group="g", duration_ms=1_000),
    "taskstore.tasks": args(ids=[1]),
    "taskstore.group": args(group="g"),
    "taskstore.groups": args(),
    "taskstore.set_limits": args(task_bytes_max=65_536, bytes_max=1 << 26),
    "health": args(),
    "metrics": args(),
    "lead.enqueue": made(lambda world: {"runs": [world.run()], "w": None}),
    "lead.complete": held(lambda first, token: {"items": [[first, 1, token, None, [b"ok"]]]}),
    "lead.fail": held(lambda first, token: {"items": [[first, 1, token, "no", None]]}),
    "lead.renew": held(lambda first, token: {"items": [[first, 1, token, 60_000]]}),
    "lead.give_up": held(lambda first, token: {"items": [[first, 1, token, "no"]]}),
    "lead.postpone": held(lambda first, token: {"items": [[first, 1, token, "later", 1_000]]}),
    "lead.release": held(lambda first, token: {"items": [[first, 1, token]]}),
    "lead.update": held(lambda first, token: {"items": [[first, token, 0, b"half"]]}),
    "lead.cancel": task(lambda first: {"ids": [first]}),
    "lead.dead.requeue": dead(lambda first: {"ids": [first]}),
    "lead.dead.discard": dead(lambda first: {"ids": [first]}),
    "lead.outcomes": task(lambda first: {"ids": [first], "watcher": "n"}),
    "lead.finished": task(lambda first: {"ids": [first]}),
    "lead.view": task(lambda first: {"id": first}),
    "cohort.hours": args(partition=1),
    "cohort.leaves": args(partition=1, hour=1),
    "cohort.log": args(position=1),
    "cohort.covering": task(lambda first: {"id": first}),
}  # fmt: skip
"""Calls that succeed if nothing is injected."""

ELSEWHERE = frozenset(
    """
    backup.hold backup.rows claim cohort.keys cohort.pending cohort.position cohort.push cohort.reach
    cohort.rows
    cohort.write extension gc job.host.here job.told job.wait lead.bodies lead.claim lead.counts lead.dead lead.depended
    lead.flow.states lead.head lead.list lead.list.next lead.offer lead.prepare lead.queue.purge
    lead.rates lead.rates.history lead.request.record lead.rows lead.timer.cancel lead.timer.find lead.timer.set
    lead.told
    lead.waiting leave partition.force peer.leave submit
    """.split()
)
"""Methods with arguments of one node for another, reached by way of those above, or that end a peer."""


@asynccontextmanager
async def one_node() -> AsyncIterator[World]:
    """A cluster of one node in memory."""
    network = MemoryNetwork()
    config = evolve(LOCAL, partitions=2, listen=f"{HOST}:0", allow_anyone=True)
    async with LocalCluster(peers=1, config=config, platform=Platform(network=network)) as cluster:
        service = cluster.nodes[0].service
        assert service is not None
        service.timers.check_callback = None  # callbacks may go anywhere
        yield World(service)


def codes_in(answer: Any) -> Iterator[str]:
    """The codes of all error maps in an answer."""
    if isinstance(answer, dict):
        if answer.get("code") in errors.BY_CODE:
            yield answer["code"]
        for one in answer.values():
            yield from codes_in(one)
    elif isinstance(answer, list):
        for one in answer:
            yield from codes_in(one)


async def codes_of(world: World, method: str, said: dict[str, Any], injection: Injection) -> list[str]:
    """The codes that a call answers while an error is injected; empty: it was done nevertheless."""
    armed.set(injection)
    try:
        with trio.fail_after(30):
            return list(codes_in(await world.call(method, said)))
    except OnyxqError as error:
        return [error.code]
    finally:
        armed.set(None)


def promises_nothing(code: str) -> bool:
    """Whether a code leaves open what was stored."""
    return not issubclass(errors.BY_CODE[code], BadRequest)


def test_the_calls_cover_every_method() -> None:
    """A new method needs a line in `CALLS`, and one that changes nothing in `READS`."""

    async def main() -> None:
        async with one_node() as world:
            methods = {*world.service._methods, *world.service.peer_methods}
            assert methods == {*CALLS, *ELSEWHERE} and not CALLS.keys() & ELSEWHERE
            assert methods >= READS

    trio.run(main)


@pytest.mark.long
@pytest.mark.usefixtures("steps")
def test_an_unexpected_error_at_any_step_is_no_bad_request() -> None:
    """Of a write it is `unknown`, or an error that says what could not be done; of a read never a wrong answer."""

    async def main() -> None:
        async with one_node() as world:
            found = 0
            for method, make in CALLS.items():
                assert not list(codes_in(await world.call(method, await make(world)))), method
                for at in range(1, STEPS_MAX):
                    injection = Injection(at, KINDS[at % len(KINDS)]("injected"))
                    codes = await codes_of(world, method, await make(world), injection)
                    if not injection.step:
                        break
                    found += 1
                    where = f"{method}: {injection.step} (step {at}): {codes}"
                    assert all(map(promises_nothing, codes)), where
                    if not changes_nothing(method):
                        assert "internal" not in codes, where
            assert found > 150, found

    trio.run(main)


@pytest.mark.usefixtures("steps")
def test_a_refusal_after_the_first_effect_is_unknown() -> None:
    """Validation that comes too late is a bug: its `bad_request` does not reach the caller."""

    async def main() -> None:
        async with one_node() as world:
            found = 0
            for method, make in CALLS.items():
                for at in range(1, STEPS_MAX):
                    injection = Injection(at, BadRequest("too late"), effects_only=True)
                    codes = await codes_of(world, method, await make(world), injection)
                    if not injection.step:
                        break
                    found += 1
                    assert all(map(promises_nothing, codes)), f"{method}: {injection.step} (step {at}): {codes}"
            assert found > 20, found

    trio.run(main)


@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_part_of_a_request_takes_back_no_effect_of_another_part(changes: int) -> None:
    """Also if the part changed nothing, or its own effects were refused."""
    with pytest.raises(Unknown), failures.serving("a request"):
        failures.begin()
        with failures.serving("a part of it"):
            for _ in range(changes):
                failures.begin()
        for _ in range(changes):
            failures.refused()
        raise BadRequest("too late")
