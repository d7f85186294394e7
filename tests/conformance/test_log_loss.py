"""Exactly once: an outbox on a real ZooKeeper whose connection breaks at every point of an append."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from functools import partial

import pytest
import trio

from log_entries import set_slots
from log_entries.registry import ENTRIES
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import LogSession, Record, SessionLost
from onyxq.core.log.record import encode_entry
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.log.outbox import Outbox
from onyxq.log.zookeeper import ZookeeperBackend
from onyxq.log.zookeeper_server import ZookeeperServer
from onyxq.system.clock import SystemClock
from tests.conformance.log_world import SESSION_TIMEOUT_MS, bounded, expire, identity_of, session_with, until
from tests.conformance.zookeeper_proxy import AFTER, ANSWERED, BEFORE, DURING, WHOLE, proxies
from tests.entries.world import CLUSTER_ID, creation, joining

pytestmark = pytest.mark.anyio

PEER = "p"


class Writer:
    """A peer's access to the log: an outbox, and the reader that passes it the records."""

    def __init__(self, session: LogSession) -> None:
        self.session = session
        self.outbox = Outbox(
            session,
            peer=PEER,
            clock=SystemClock(),
            measure=Measured,
            on_append=lambda _: None,
            encode=partial(encode_entry, entries=ENTRIES),
        )
        self.outbox.cluster_id = CLUSTER_ID
        self.known: list[int] = []
        """Slot counts that the peer knows to be applied."""
        self.unknown: list[int] = []

    async def run(self, nursery: trio.Nursery) -> None:
        """Join as the only peer, and continue in the background."""
        nursery.start_soon(self.outbox.run)
        nursery.start_soon(self._follow)
        self.outbox.submit([creation(), joining(PEER)])

    async def _follow(self) -> None:
        replica = EMPTY
        while True:
            found = await self.session.read(replica.position + 1)
            assert isinstance(found, Record)
            done = step(replica, found, ENTRIES)
            replica = done.replica
            if done.peer == PEER and not done.problem:
                self.outbox.applied(done.number, replica.position, done.outcomes)

    async def set_slots(self, numbers: Sequence[int]) -> None:
        """Append one record for each number, each after the previous one was read."""
        for number in numbers:
            told = trio.Event()

            def heard(_: int, verdicts: Sequence[str] | None, number: int = number, told: trio.Event = told) -> None:
                if verdicts is None:
                    self.unknown.append(number)
                else:
                    assert list(verdicts) == ["applied"]
                    self.known.append(number)
                told.set()

            self.outbox.submit([set_slots.Args(PEER, number)], heard)
            await told.wait()


async def applied(session: LogSession) -> list[int]:
    """Return the slot counts in the order in which the log applies them, as another reader sees them."""
    replica: Replica = EMPTY
    slots: list[int] = []
    end = await session.tail()
    while replica.position < end:
        found = await session.read(replica.position + 1)
        assert isinstance(found, Record)
        done = step(replica, found, ENTRIES)
        replica = done.replica
        slots += [one.args.slots for one in done.outcomes if one.name == "set_slots" and one.verdict == "applied"]
    return slots


def backend_at(hosts: str, cluster: str) -> ZookeeperBackend:
    """Return the cluster's log, reached over these addresses."""
    return ZookeeperBackend(hosts, cluster, session_timeout_ms=SESSION_TIMEOUT_MS)


@pytest.mark.long
@pytest.mark.parametrize("where", [BEFORE, DURING, AFTER, ANSWERED])
@bounded
async def test_a_record_is_applied_once_wherever_its_append_breaks(
    zookeeper: ZookeeperServer, cluster: str, where: str
) -> None:
    """The outbox is in doubt, sends again, and learns the outcome in the same session."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(backend_at(proxy.address, cluster)) as session,
        trio.open_nursery() as nursery,
    ):
        writer = Writer(session)
        await writer.run(nursery)
        await writer.set_slots([1])
        identity = identity_of(session)
        proxy.plan = deque([where, WHOLE, where])
        await writer.set_slots([2, 3, 4, 5])
        assert identity_of(session) == identity
        assert proxy.cuts == 2
        async with session_with(backend_at(zookeeper.hosts, cluster)) as other:
            assert await applied(other) == [1, 2, 3, 4, 5] == writer.known
        nursery.cancel_scope.cancel()


@pytest.mark.long
@bounded
async def test_records_are_applied_once_and_in_order_through_many_breaks(
    zookeeper: ZookeeperServer, cluster: str
) -> None:
    """This holds if the repeated record breaks again."""
    chance = random.Random(5)
    words = [BEFORE, DURING, AFTER, ANSWERED, WHOLE, WHOLE, WHOLE]
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(backend_at(proxy.address, cluster)) as session,
        trio.open_nursery() as nursery,
    ):
        writer = Writer(session)
        await writer.run(nursery)
        proxy.plan = deque(chance.choices(words, k=25))
        await writer.set_slots(range(1, 31))
        async with session_with(backend_at(zookeeper.hosts, cluster)) as other:
            assert await applied(other) == list(range(1, 31)) == writer.known
        nursery.cancel_scope.cancel()


@pytest.mark.long
@bounded
async def test_a_session_that_moves_to_another_server_amid_appends_goes_on(
    ensemble: ZookeeperServer, cluster: str
) -> None:
    """It moves twice, each time with an append whose answer is lost; session and pulse stay."""
    async with (
        proxies(ensemble.hosts) as servers,
        session_with(backend_at(",".join(proxy.address for proxy in servers), cluster)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.set_pulse(PEER, b"")
        writer = Writer(session)
        await writer.run(nursery)
        await writer.set_slots([1])
        identity = identity_of(session)
        plan: deque[str] = deque()
        for proxy in servers:
            proxy.plan = plan
        for start in (2, 12):
            plan.extend([WHOLE, WHOLE, AFTER])
            async with trio.open_nursery() as both:
                both.start_soon(writer.set_slots, range(start, start + 10))
                await until(lambda: not plan)
                # all in one step, because a session that moves meanwhile would find all servers closed
                for proxy in servers:
                    proxy.refusing = proxy.used
                for proxy in servers:
                    await proxy.interrupt()
        assert identity_of(session) == identity
        async with session_with(backend_at(ensemble.hosts, cluster)) as other:
            assert await applied(other) == list(range(1, 22)) == writer.known
            assert PEER in await other.pulses()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("where", [WHOLE, BEFORE, AFTER])
@bounded
async def test_nothing_is_written_behind_the_end_of_a_session(
    zookeeper: ZookeeperServer, cluster: str, where: str
) -> None:
    """It expires during an append: all known records are applied, and at most that one more."""
    async with (
        proxies(zookeeper.hosts) as (proxy,),
        session_with(backend_at(zookeeper.hosts, cluster)) as other,
        session_with(backend_at(proxy.address, cluster)) as session,
    ):
        writer = Writer(session)
        ended = False
        try:
            async with trio.open_nursery() as nursery:
                await writer.run(nursery)
                await writer.set_slots([1, 2, 3])
                proxy.plan = deque([where])
                nursery.start_soon(writer.set_slots, range(4, 1_000_000))
                await until(lambda: not proxy.plan)
                await expire(zookeeper, identity_of(session))
                await trio.sleep_forever()
        except* SessionLost:  # outbox and reader learn of it together, or the first one ends the other
            ended = True
        assert ended
        writer.outbox.close()
        await session.aclose()
        slots = await applied(other)
        assert slots == list(range(1, len(slots) + 1))
        assert len(slots) - len(writer.known) in (0, 1)
        assert writer.known == slots[: len(writer.known)]
