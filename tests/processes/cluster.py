"""Real peers for tests: one process each, on a real ZooKeeper, observed through the API only.

A `Cluster` starts peers, breaks them by process id (kill, freeze, SIGTERM), and asks them over
HTTP. A test waits for a state that a peer reports, with a deadline, and never just sleeps.
Processes end with the test: by id when it is over, and by the kernel's parent-death signal if it is
killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from onyxq.system.parent_death import killed_with_parent

SESSION_TIMEOUT_MS = 3_000
"""Session timeout: long enough for a busy machine of two cores, short enough to wait for."""
READY_TIMEOUT_S = 60.0
STATE_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 10.0
POLL_S = 0.05
TAIL_LINES = 40

T = TypeVar("T")


def bounded(seconds: float) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Let a test that waits for ever fail instead."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @functools.wraps(test)
        async def run(*args: Any, **kwargs: Any) -> None:
            with trio.fail_after(seconds):
                await test(*args, **kwargs)

        return run

    return decorate


class PeerProcess:
    """One node: its data directory, and its process, if there is one."""

    def __init__(self, name: str, *, data: Path, output: Path, arguments: Iterable[str]) -> None:
        self.name = name
        self.data = data
        self.first_peer = ""
        """Id of the peer that the process started with."""
        self.node = ""
        self.address = ""
        self.http = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.frozen = False
        self.program = "onyxq"
        """The module that the process runs."""
        self.surroundings: dict[str, str] = {}
        """Environment variables for the program, besides those of this process."""
        self._arguments = list(arguments)
        self._said = output / f"{name}.out"
        self._stderr = output / f"{name}.err"

    @property
    def runs(self) -> bool:
        """Whether its process exists (a frozen one does)."""
        return self.process is not None and self.process.poll() is None

    def spawn(self) -> None:
        """Start the process, without waiting until it serves."""
        assert not self.runs
        self.data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", self.program, "peer", "start", "--json", "--data", str(self.data)]
        with open(self._said, "wb") as said, open(self._stderr, "ab") as stderr:
            self.process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=stderr,
                env=surroundings() | self.surroundings,
                cwd=self._said.parent,
                start_new_session=True,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )

    async def ready(self) -> None:
        """Wait for its ``ready`` line; fail if it ends or takes too long."""
        assert self.process is not None
        line = b""
        with trio.move_on_after(READY_TIMEOUT_S):
            while not line.endswith(b"\n"):
                if not self.runs:
                    pytest.fail(f"peer {self.name} ended with code {self.process.returncode} before it was ready")
                await trio.sleep(POLL_S)
                line = self._said.read_bytes()
        if not line.endswith(b"\n"):
            pytest.fail(f"peer {self.name} is not ready after {READY_TIMEOUT_S:.0f} s")
        found = json.loads(line)
        assert self.node in ("", found["node"]), "a node keeps its id"
        self.first_peer, self.node, self.address, self.http = (
            found["peer"], found["node"], found["listen"], found["http"]
        )  # fmt: skip

    def kill(self) -> None:
        """Send SIGKILL; return when the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.frozen = False

    def freeze(self) -> None:
        """Send SIGSTOP."""
        assert self.process is not None and self.runs
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Send SIGCONT."""
        assert self.process is not None and self.runs
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    async def terminate(self, *, seconds: float = STATE_TIMEOUT_S) -> None:
        """Send SIGTERM; return when it has drained and ended with code 0."""
        assert self.process is not None and self.runs
        self.process.terminate()
        with trio.move_on_after(seconds):
            while self.runs:
                await trio.sleep(POLL_S)
        assert self.process.poll() == 0, f"peer {self.name}: {self.process.poll()} (None: still runs) after SIGTERM"

    def stderr(self) -> str:
        """Return everything that it wrote to stderr."""
        return self._stderr.read_text(errors="replace")

    def said(self) -> bytes:
        """Return the output so far."""
        return self._said.read_bytes()

    def tail(self) -> str:
        """Return its last lines on stderr."""
        if not self._stderr.exists():
            return "(never started)"
        lines = self._stderr.read_text(errors="replace").splitlines()
        return "\n".join([f"... {max(0, len(lines) - TAIL_LINES)} lines before", *lines[-TAIL_LINES:]])


class Cluster:
    """Peers of one cluster; use it with ``async with``."""

    def __init__(
        self,
        root: Path,
        *,
        zookeeper: str,
        name: str,
        yield_after_ms: int = 5_000,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self.name = name
        self.peers: dict[str, PeerProcess] = {}
        self.root = root
        self._arguments = [
            *("--cluster", name, "--zookeeper", zookeeper, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
            *("--session-timeout-ms", str(session_timeout_ms), "--yield-after-ms", str(yield_after_ms)),
        ]

    async def __aenter__(self) -> Cluster:
        self._http = httpx.AsyncClient(timeout=ASK_TIMEOUT_S, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        with trio.CancelScope(shield=True):
            await self._http.aclose()

    def end(self) -> None:
        """Kill every process that still runs."""
        for peer in self.peers.values():
            with contextlib.suppress(ProcessLookupError):
                peer.kill()

    # --- processes

    def __getitem__(self, name: str) -> PeerProcess:
        return self.peers[name]

    def more_options(self, *options: str) -> None:
        """Give further options to nodes that are added later."""
        self._arguments += options

    def add(self, name: str, *, data: Path | None = None) -> PeerProcess:
        """Add a node without a process."""
        peer = PeerProcess(name, data=data or self.root / name, output=self.root, arguments=self._arguments)
        self.peers[name] = peer
        return peer

    async def start(self, *names: str) -> None:
        """Start nodes together, new or stopped ones; return once each has reported that it serves."""
        for name in names:
            (self.peers.get(name) or self.add(name)).spawn()
        for name in names:
            await self.peers[name].ready()

    @property
    def serving(self) -> list[PeerProcess]:
        """Return the nodes that run and are not frozen."""
        return [peer for peer in self.peers.values() if peer.runs and not peer.frozen]

    def client(self, *names: str, timeout_ms: int = 30_000) -> AsyncClient:
        """Return a client that knows the named peers first (default: all that serve)."""
        known = [self.peers[name] for name in names] or self.serving
        return AsyncClient([peer.address for peer in known], timeout_ms=timeout_ms)

    # --- looking, over HTTP

    async def send(
        self, peer: PeerProcess, method: str, path: str, body: Any = None, *, seconds: float = ASK_TIMEOUT_S
    ) -> httpx.Response:
        """Send one request to one peer; raises `httpx.TransportError`."""
        return await self._http.request(method, f"http://{peer.http}{path}", json=body, timeout=seconds)

    async def see(self, peer: PeerProcess, path: str) -> Any:
        """Return a peer's answer to GET; raises `httpx.HTTPError`."""
        answer = await self.send(peer, "GET", path)
        answer.raise_for_status()
        return answer.json()

    async def until(self, about: str, check: Callable[[], Awaitable[T]], *, seconds: float = STATE_TIMEOUT_S) -> T:
        """Wait until ``check`` returns a true value, and return it; a failed request counts as false."""
        found: T | None = None
        last: Exception | None = None
        with trio.move_on_after(seconds):
            while not found:
                try:
                    found = await check()
                    last = None
                except (httpx.HTTPError, OnyxqError) as error:
                    last = error
                if not found:
                    await trio.sleep(POLL_S)
        if not found:
            pytest.fail(f"{about}: not within {seconds:.0f} s; last answer {found!r}, last error {last!r}")
        return found

    async def partitions(self, peer: PeerProcess) -> dict[int, dict[str, Any]]:
        """Return the placement of every partition, as a peer sees it."""
        return {found["partition"]: found for found in (await self.see(peer, "/v1/partitions"))["partitions"]}

    async def nodes_of_ring(self, peer: PeerProcess) -> set[str]:
        """Return the nodes of the ring's members, as a peer sees it; empty while the ring is not closed."""
        ring = await self.see(peer, "/v1/ring")
        return {member["node"] for member in ring["members"]} if ring["closed"] else set()

    async def whole(self, *names: str, seconds: float = STATE_TIMEOUT_S) -> None:
        """Wait until the cluster is complete in the view of each named peer.

        That is: exactly these nodes are in a closed ring, and every partition is led by one of them, ready and
        settled.
        """
        chosen = [self.peers[name] for name in names]
        nodes = {peer.node for peer in chosen}

        async def look() -> bool:
            for peer in chosen:
                if await self.nodes_of_ring(peer) != nodes:
                    return False
                for placed in (await self.partitions(peer)).values():
                    if not placed["ready"] or placed["leader_node"] not in nodes:
                        return False
                    if placed["members"] != placed["target"]:
                        return False
            return True

        await self.until(f"a closed ring of {', '.join(names)} with every partition served", look, seconds=seconds)

    async def replicated(self, peer: PeerProcess, *, seconds: float = STATE_TIMEOUT_S) -> None:
        """Wait until a peer sees no under-replicated partition."""

        async def look() -> bool:
            found = await self.see(peer, "/v1/cluster")
            return bool(found["under_replicated"] == 0 and found["not_ready"] == 0)

        await self.until("no partition under-replicated", look, seconds=seconds)

    async def led_by(self, peer: PeerProcess, *, seen_by: PeerProcess) -> list[int]:
        """Return the partitions that a peer's node leads, as another one sees it."""
        placed = await self.partitions(seen_by)
        return [number for number, found in sorted(placed.items()) if found["leader_node"] == peer.node]

    def tails(self) -> list[tuple[str, str]]:
        """Return the end of each node's output on stderr."""
        return [(f"stderr of peer {peer.name} ({peer.node})", peer.tail()) for peer in self.peers.values()]


def surroundings() -> dict[str, str]:
    """Return the environment of a process that runs modules of this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONYXQ_")}
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "ONYXQ_SPARK_QUICK_START": "true"}
    return kept | {"PYTHONUNBUFFERED": "1", **ours}
