"""A whole cluster in a thread of the test process, and a client that may send anything.

The client implements the wire protocol itself (sockets, struct and msgpack only), so no code of the
product is between a test and its bytes.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any

import httpx
import msgpack
import pytest
import trio
from attrs import evolve

from onyxq.access.certificates import PLAIN, Certificates
from onyxq.access.grants import OPEN, Access
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id
from onyxq.interfaces.cli.main import run as run_command
from onyxq.interfaces.daemon import Platform
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.node.jobs.host_process import launch
from onyxq.node.jobs.hosts import Launch

START_S_MAX = 60
ANSWER_S_MAX = 30
PATIENCE_MS = 20_000
"""Longest wait of a claim for a task that is there or will come."""

HELLO: dict[str, Any] = {"role": "client"}
_serial = count(1)


def fresh_id(partition: int = 1, *, ms: int = 1_700_000_000_000) -> TaskId:
    """Return a new id that is the first of its stretch."""
    return make_id(ms, partition, 0xBAD, 1024 * next(_serial))


@contextmanager
def running(
    *,
    peers: int = 1,
    http: bool = False,
    slots: int = 0,
    launch_host: Launch = launch,
    access: Access = OPEN,
    first: Any = None,
    certificates: Certificates = PLAIN,
    timers: dict[str, Any] | None = None,
    http_hosts: str = "",
) -> Iterator[LocalCluster]:
    """Run a cluster in a thread of its own; raise its error.

    ``slots``: each peer hosts Spark with ``launch_host`` and offers that many. ``first``: other settings of the
    first peer. ``timers``: settings of callbacks. ``http_hosts``: names at which HTTP answers.
    """
    spark: dict[str, Any] = {"spark": True, "slots": slots} if slots else {}
    config = evolve(
        LOCAL,
        http="127.0.0.1:0" if http else None,
        access=access,
        certificates=certificates,
        http_hosts=http_hosts,
        **spark,
        **(timers or {}),
    )
    platform = Platform(launch_host=launch_host)
    with in_thread(LocalCluster(peers=peers, config=config, first=first, platform=platform)) as (cluster, _):
        yield cluster


@contextmanager
def in_thread(cluster: LocalCluster) -> Iterator[tuple[LocalCluster, trio.lowlevel.TrioToken]]:
    """Run a cluster in a thread of its own, whose trio has the token; raise its error."""
    up, errors = threading.Event(), list[BaseException]()
    stops: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        stop = trio.Event()
        async with cluster:
            stops.append((trio.lowlevel.current_trio_token(), stop))
            up.set()
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            errors.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    try:
        assert up.wait(START_S_MAX), "the cluster did not start in time"
        if errors:
            raise errors[0]
        yield cluster, stops[0][0]
    finally:
        if stops and not errors:
            token, stop = stops[0]
            token.run_sync_soon(stop.set)
        thread.join(START_S_MAX)
        assert not thread.is_alive(), "the cluster did not stop in time"
        if errors:
            raise errors[0]


class Wire:
    """One connection of that client, for a ``with`` block; ``hello`` None: send none."""

    def __init__(self, address: str, *, hello: dict[str, Any] | None = HELLO) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)
        self._numbers = count(1)
        self.greeting: Any = None
        if hello is not None:
            self.send(["onyxq", 1, hello])
            self.greeting = self.receive()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, message: Any) -> None:
        """Send one frame."""
        self.send_bytes(frame(msgpack.packb(message)))

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes; those that the other side no longer reads are dropped."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def end(self) -> None:
        """Send nothing more."""
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> Any:
        """Return the next message; None once the other side has closed."""
        head = self._exactly(4)
        if head is None:
            return None
        body = self._exactly(int(struct.unpack("<I", head)[0]))
        return None if body is None else msgpack.unpackb(body, strict_map_key=False)

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data

    def answer(self, method: Any, args: Any) -> tuple[Any, dict[str, Any] | None]:
        """Return result and error of one call."""
        number = next(self._numbers)
        self.send([number, method, args])
        answered = self.receive()
        assert answered is not None, f"{method}: the connection was closed"
        back, status, body = answered
        assert back == number, answered
        return (body, None) if status == 0 else (None, body)

    def call(self, method: str, args: dict[str, Any]) -> Any:
        """Return the result of one call that must succeed."""
        result, error = self.answer(method, args)
        assert error is None, error
        return result

    def error(self, method: Any, args: Any) -> dict[str, Any]:
        """Return the error of one call that must fail, after a check that it is complete."""
        result, error = self.answer(method, args)
        assert error is not None, f"{method} of {str(args)[:200]} gave {result}"
        return complete_error(error)

    def goodbye(self) -> list[Any]:
        """Return everything until the other side closes."""
        out = []
        while (message := self.receive()) is not None:
            out.append(message)
        return out


def frame(body: bytes) -> bytes:
    """A frame around any bytes."""
    return struct.pack("<I", len(body)) + body


def complete_error(error: Any) -> dict[str, Any]:
    """Return the error map after a check that no field is missing."""
    assert isinstance(error, dict) and {"code", "message", "field", "hint"} <= error.keys(), error
    assert error["message"] and isinstance(error["hint"], str) and error["code"] != "internal", error
    return error


class Live:
    """A single node, a wire connection and an HTTP client of it."""

    def __init__(self, cluster: LocalCluster, token: str | None = None) -> None:
        self.cluster = cluster
        self.address = cluster.addresses[0]
        self.wire = Wire(self.address, hello=HELLO if token is None else {**HELLO, "credential": token})
        self.http = httpx.Client(
            base_url=f"http://{cluster.http_addresses[0]}",
            timeout=ANSWER_S_MAX,
            trust_env=False,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
        )

    def close(self) -> None:
        """Close both."""
        self.wire.__exit__(None, None, None)
        self.http.close()

    def total(self) -> int:
        """Return the number of tasks in all queues."""
        with Wire(self.address) as wire:
            return sum(counts["total"] for counts in wire.call("count", {"queue": None})["counts"].values())

    def check_serves(self) -> None:
        """Process one task completely, on a new connection and over HTTP."""
        queue = f"life-{next(_serial)}"
        body = pack_task({"queue": queue}, [b"x"])
        with Wire(self.address) as wire:
            first = fresh_id(7)
            assert wire.call("enqueue", {"runs": [[first, body]], "w": None})["acks"] == [1]
            ((token, _, _, claimed, _),) = wire.call("claim", claim_of(queue, wait_ms=PATIENCE_MS))["claims"]
            assert claimed == first
            assert wire.call("complete", {"items": [[first, 1, token, None, [b"ok"]]]}) == {"results": [[]]}
        answer = self.http.get(f"/v1/tasks/{first.hex()}")
        assert answer.status_code == 200 and answer.json()["state"] == "completed"


class Line:
    """Runs commands on the cluster and reads their output."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._connect = ["--connect", address]
        self._capsys = capsys

    def code(self, *arguments: str) -> int:
        """Return the exit code."""
        code = run_command([*arguments, *self._connect])
        self.said = self._capsys.readouterr()
        return code

    def json(self, *arguments: str) -> Any:
        """Return the document that a successful command prints with ``--json``."""
        code = self.code(*arguments, "--json")
        assert code == 0, self.said.err
        return json.loads(self.said.out)


def claim_of(*queues: str, **members: Any) -> dict[str, Any]:
    """Arguments of a claim of one task."""
    return {"queues": list(queues), "max": 1, "lease_ms": 30_000, "wait_ms": 0, "worker": "w"} | members


def names(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    """Short names for parameters."""
    return [f"{place}-{case[0]}" for place, case in enumerate(cases)]
