"""A cluster with tasks in all states, purged ones in an archive, and a test's own counts of everything."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import define

from onyxq.access.grants import Access, Token
from onyxq.client import Client
from onyxq.history.tables.sources import Sources
from onyxq.interfaces.cli.past.sql_engine import answer
from tests.interfaces.live_world import PATIENCE_MS, running

ADMIN, TENANT, SECRET = "an admin's token of length", "a tenant's token of length", "a secret of the whole cluster"
DONE, RETRIED, REMOVED = 60, 20, 5
"""Tasks of the queue ``bills`` that are completed, those of them that fail once before, and cancelled ones."""
PURGE_S_MAX = 90
QUICK = {"purge_bucket_ms": 1_000, "purge_margin_ms": 10_000}


@define
class World:
    """A cluster with a past, and what the test did."""

    address: str
    archive: Path
    states: Counter[tuple[str, str]]
    """Tasks by queue and state."""
    attempts: Counter[tuple[str, str | None]]
    claims: Counter[tuple[str, str | None]]
    """By queue and outcome."""
    some_id: str
    """Of an archived task."""

    def ask(self, query: str, *, token: str = ADMIN, offline: bool = False) -> list[tuple[Any, ...]]:
        """Return the rows of an answer."""
        with Client(self.address, token=token) as client:
            found = answer(query, Sources(archives=(self.archive,)), None if offline else client.call)
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@contextmanager
def past_world(archive: Path) -> Iterator[World]:
    """One node whose queue ``bills`` is archived and purged after a second."""
    access = Access((Token.of(ADMIN, "all", ["admin"]), Token.of(TENANT, "ours", ["read:mail"])), SECRET)
    more = {**QUICK, "task_archive": str(archive), "record_archive": str(archive)}
    with running(access=access, timers=more) as cluster, Client(cluster.addresses[0], token=ADMIN) as client:
        made = World(cluster.addresses[0], archive, Counter(), Counter(), Counter(), "")
        client.set_queue("bills", archive=True, retention_ms=1_000)
        made.some_id = _billed(client, made)
        _mailed(client, made)
        until = time.monotonic() + PURGE_S_MAX
        while sum(client.count("bills")["bills"].values()):
            assert time.monotonic() < until, "the tasks were not purged in time"
            client.claim("nothing", wait_ms=500)
        client.call("gc", {})
        yield made


def _billed(client: Client, made: World) -> str:
    """Complete and cancel tasks that will be archived."""
    ids = client.enqueue_many("bills", [b'{"n": %d}' % n for n in range(DONE)], format="json", backoff_ms=0)
    done = 0
    failed: set[bytes] = set()
    while done < DONE:
        for claim in client.claim("bills", max=10, wait_ms=PATIENCE_MS):
            if len(failed) < RETRIED and claim.id not in failed:
                failed.add(claim.id)
                client.fail(claim, "not yet", retry_in_ms=0)
            else:
                client.complete(claim, b"paid")
                done += 1
    for one in client.enqueue_many("bills", [b"no"] * REMOVED, delay_ms=3_000):
        client.cancel(one)
    made.states += Counter({("bills", "completed"): DONE, ("bills", "cancelled"): REMOVED})
    made.claims += Counter({("bills", "completed"): DONE, ("bills", "failed"): RETRIED})
    made.attempts += made.claims
    return ids[0].hex()


def _mailed(client: Client, made: World) -> None:
    """Leave tasks in every state."""
    client.enqueue_many("mail", [b"x"] * 2)
    for outcome in ("completed", "failed"):
        claim = client.claim("mail", wait_ms=PATIENCE_MS)[0]
        if outcome == "completed":
            client.release(claim)
            claim = client.claim("mail", wait_ms=PATIENCE_MS)[0]
            client.complete(claim)
        else:
            client.give_up(claim, "no such user")
    client.enqueue("mail", b"held", priority=9)
    client.claim("mail", lease_ms=600_000, wait_ms=PATIENCE_MS)
    client.enqueue_many("mail", [b"later"] * 3, delay_ms=3_600_000)
    client.enqueue_many("mail", [b"ready"] * 4)
    client.enqueue("mail", b"after", depends=[client.enqueue("mail", b"first", delay_ms=3_600_000)])
    client.cancel(client.enqueue("mail", b"gone"))
    states = {"scheduled": 4, "waiting": 1, "ready": 4, "claimed": 1, "completed": 1, "failed": 1, "cancelled": 1}
    made.states += Counter({("mail", state): count for state, count in states.items()})
    ended: dict[str | None, int] = {"completed": 1, "failed": 1, None: 1}
    made.attempts += Counter({("mail", outcome): count for outcome, count in ended.items()})
    made.claims += Counter({("mail", outcome): count for outcome, count in {**ended, "released": 1}.items()})
