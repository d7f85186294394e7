"""Rows whose time is purged before the relay sends them: a real purge on a real node, with the shortest margin."""

from __future__ import annotations

import time

import anyio
import psycopg
import pytest

from onyxq import AsyncClient, Client, Step
from onyxq.core.ids import partition_of
from onyxq.errors import NotFound
from onyxq.outbox import OutboxDatabase, Relay, create_table
from onyxq.outbox.psycopg import Outbox
from tests.interfaces.live_world import running

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000
PURGE_S_MAX = 60.0
LOOK_EVERY_S = 0.1


def test_a_purged_row_gets_a_new_id_only_if_it_was_never_sent(database: str) -> None:
    """The task of the unsent row runs under a new id. The row that was sent may have run: it waits for a decision.

    A row that depends on the unsent one, and whose own time is still to come, depends on its new id.
    """
    step = Step("short", b"x", ordering_key="one partition")
    with psycopg.connect(database) as connection:
        connection.execute(create_table().encode())
        never, done = Outbox().add_many(connection, [step, step])
        after = Outbox().add(connection, Step("after", b"y", depends=[never], delay_ms=HOUR_MS))
    assert partition_of(never) == partition_of(done)
    quick = {"purge_margin_ms": 10_000, "purge_bucket_ms": 1_000}
    with running(first=quick) as cluster, Client(cluster.addresses[0]) as client:
        client.set_queue("short", retention_ms=0)
        with OutboxDatabase(database) as dead:
            _, sent, _ = dead.pending(10)
            dead.mark_sent([sent.seq])
            client.enqueue(sent.queue, sent.data, **sent.arguments(client.now_ms()))
        (claim,) = client.claim("short", wait_ms=10_000)
        client.complete(claim)
        until_purged(client, done)

        relay = Relay(database)

        async def main() -> None:
            async with AsyncClient(cluster.addresses[0]) as own, anyio.create_task_group() as group:
                group.start_soon(relay.run, own)
                with anyio.fail_after(30):
                    while relay.relayed + relay.refused < 3:
                        await anyio.sleep(LOOK_EVERY_S)
                relay.stop()

        anyio.run(main)
        assert (relay.relayed, relay.refused) == (2, 1)
        (claim,) = client.claim("short", wait_ms=10_000)
        assert claim.id not in (never, done)
        assert partition_of(claim.id) == partition_of(never)
        assert client.get(after).depends == (claim.id,)
        client.complete(claim)
        with OutboxDatabase(database) as found:
            assert found.pending(10) == []
            (refused,) = found.refused(10)
        assert (refused.seq, refused.task_id) == (sent.seq, done)
        assert refused.error.startswith("purged: ")


def until_purged(client: Client, task_id: bytes) -> None:
    """Wait until a task is purged."""
    until = time.monotonic() + PURGE_S_MAX
    while time.monotonic() < until:
        try:
            client.get(task_id)
        except NotFound:
            return
        time.sleep(LOOK_EVERY_S)
    pytest.fail("the task was not purged in time")
