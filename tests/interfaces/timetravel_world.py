"""A cluster in this process and commands on it, for tests of time travel."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import evolve

from onyxq import Client, api
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster

PATIENCE_S = 60.0
PATIENCE_MS = 20_000
"""Longest wait of a claim for an existing task."""
_serial = count(1)


class World:
    """A cluster of three peers, a client of the first, and commands against it."""

    def __init__(self, cluster: LocalCluster, portal: BlockingPortal, client: Client) -> None:
        self.cluster, self.portal, self.client = cluster, portal, client
        self.queue = f"q{next(_serial)}"

    @property
    def address(self) -> str:
        """Return the first peer's address."""
        return self.cluster.addresses[0]

    def story(self) -> tuple[str, list[int]]:
        """Make a task that fails once and is then completed; return its id and both tokens."""
        task_id = self.client.enqueue(self.queue, b"x", backoff_ms=1)
        (first,) = self.client.claim(self.queue, wait_ms=PATIENCE_MS, worker="w1")
        self.client.renew(first, 60_000)
        self.client.fail(first, "no such host", retry_in_ms=1)
        (second,) = self.client.claim(self.queue, wait_ms=PATIENCE_MS, worker="w2")
        self.client.update(second, b"half way")
        self.client.complete(second)
        # The completion is acknowledged before the log records the end of the claim.
        eventually(lambda: self.client.call("log", {"from": second.token}), lambda found: released(found, second.token))
        return task_id.hex(), [first.token, second.token]

    def collect(self) -> int:
        """Collect the log, and let every peer forget what it remembers of it; return the snapshot's position."""
        position = api.gc(self.address).position
        for node in self.cluster.nodes:
            assert node.node is not None
            self.portal.call(node.node.records.clear)
            self.portal.call(node.node.recent.clear)
        return position

    def settled(self) -> list[dict[str, Any]]:
        """Return position and digest of each peer, all at the same position."""
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(address)) for address in self.cluster.addresses]
            return eventually(
                lambda: [client.call("replica", {}) for client in clients],
                lambda found: len({one["position"] for one in found}) == 1,
            )


def released(log: dict[str, Any], token: int) -> bool:
    """Return whether the log has the end of the token's claim."""
    entries = [entry for record in log["records"] for entry in record["entries"] if entry["entry"] == "release_claims"]
    return any(one["token"] == token for entry in entries for one in entry["args"]["releases"])


def eventually(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Call ``look`` until a condition holds; return its result."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := look()):
        assert time.monotonic() < deadline, found
    return found


@contextmanager
def started(*, peers: int, **settings: Any) -> Iterator[tuple[LocalCluster, BlockingPortal]]:
    """Run a cluster on one embedded log in a thread of its own; ``settings`` are those of all nodes."""
    with start_blocking_portal("trio") as portal:
        made = LocalCluster(peers=peers, config=evolve(LOCAL, **settings))
        with portal.wrap_async_context_manager(made) as cluster:
            yield cluster, portal


class Line:
    """Runs commands and reads their output."""

    def __init__(self, world: World, capsys: pytest.CaptureFixture[str]) -> None:
        self._world, self._capsys = world, capsys

    def text(self, *arguments: str, code: int = 0, connect: bool = True) -> str:
        """Return a command's output."""
        where = ["--connect", self._world.address] if connect else []
        found = run([*arguments, *where])
        said = self._capsys.readouterr()
        self.error = said.err
        assert found == code, said
        return said.out

    def json(self, *arguments: str, code: int = 0, connect: bool = True) -> Any:
        """Return the document that it prints with ``--json``."""
        return json.loads(self.text(*arguments, "--json", code=code, connect=connect))
