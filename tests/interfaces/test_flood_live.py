"""A real node with clients that send too much and never to the end: its memory is bounded, others are served."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

from onyxq import Client
from onyxq.interfaces.http.bodies import BODIES_BYTES_MAX
from onyxq.wire.bounds import PARTIAL_BYTES_MAX
from onyxq.wire.protocol import FRAME_BYTES_MAX

CALLERS = 32
MIB = 1 << 20
SLACK_BYTES = 120 * MIB
"""Bytes for buffers of the interpreter, the store and the sockets."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return process id and addresses of a node in a process of its own."""
    where = tmp_path_factory.mktemp("node")
    command = [sys.executable, "-m", "onyxq", "dev", "--json", "--data", str(where)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())["peers"][0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def resident(pid: int) -> int:
    """Return the memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def connect(stack: ExitStack, address: str) -> socket.socket:
    """Return a connection that ends with the stack."""
    host, port = address.rsplit(":", 1)
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))


def send(stream: socket.socket, data: bytes) -> None:
    """Send as much as the other side accepts."""
    stream.settimeout(5.0)
    try:
        stream.sendall(data)
    except (ConnectionError, TimeoutError):
        return


def check_serves(node: dict[str, Any]) -> None:
    """Check that another client's task is processed over TCP, and HTTP answers."""
    with Client(node["listen"]) as client:
        client.enqueue_many("other", [b"x"])
        (claim,) = client.claim(["other"], wait_ms=20_000, worker="w")
        client.complete(claim)
    with httpx.Client(timeout=PATIENCE_S, trust_env=False, verify=False) as client:
        assert client.get(f"http://{node['http']}/v1/queues").status_code == 200


@pytest.mark.long
def test_memory_is_bounded_whoever_sends_what(node: tuple[int, dict[str, Any]]) -> None:
    """Many send messages and bodies of almost the largest size at a time, none to the end."""
    pid, where = node
    check_serves(where)
    before = resident(pid)
    hello = msgpack.packb(["onyxq", 1, {"role": "client"}])
    begun = struct.pack("<I", len(hello)) + hello + struct.pack("<I", FRAME_BYTES_MAX)
    message = begun + bytes(FRAME_BYTES_MAX - MIB)
    head = b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    body = head % (16 * MIB) + bytes(15 * MIB)
    oversized = [head % (1 << 40), begun[:-4] + b"\xff\xff\xff\xff", b"GET /" + b"a" * MIB, b"\xff" * MIB]
    assert CALLERS * (len(message) + len(body)) > 2 * (PARTIAL_BYTES_MAX + BODIES_BYTES_MAX + SLACK_BYTES)
    with ExitStack() as stack:
        jobs: list[tuple[str, bytes]] = []
        for _ in range(CALLERS):
            jobs += [(where["listen"], message), (where["http"], body)]
        jobs += [(where[port], data) for port in ("listen", "http") for data in oversized]
        streams = [connect(stack, address) for address, _ in jobs]
        streams += [connect(stack, where[port]) for port in ("listen", "http") for _ in range(50)]  # say nothing
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(send, streams, [data for _, data in jobs]):
                assert resident(pid) - before < PARTIAL_BYTES_MAX + BODIES_BYTES_MAX + SLACK_BYTES
        check_serves(where)
        assert resident(pid) - before < PARTIAL_BYTES_MAX + BODIES_BYTES_MAX + SLACK_BYTES
    check_serves(where)


@pytest.mark.long
def test_memory_is_bounded_whatever_messages_become_once_they_are_decoded(node: tuple[int, dict[str, Any]]) -> None:
    """A byte of MessagePack may be a map, and so may three bytes of JSON."""
    pid, where = node
    check_serves(where)
    before, worst = resident(pid), 0
    one = b"\xdd" + struct.pack(">I", 262_143) + b"\x80" * 262_143
    hello = msgpack.packb(["onyxq", 1, {"role": "client"}])
    frames = struct.pack("<I", len(hello)) + hello
    for method in ("health", "enqueue", "timer.set"):
        body = msgpack.packb([1, method, {"a": [b"x"] * 79}]).replace(msgpack.packb(b"x"), one)
        frames += struct.pack("<I", len(body)) + body
    json_maps = b'{"tasks":[' + b"{}," * 5_000_000 + b"{}]}"
    head = b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(json_maps)
    with ExitStack() as stack:
        jobs = [(where["listen"], frames), (where["http"], head + json_maps)] * 3
        streams = [connect(stack, address) for address, _ in jobs]
        with ThreadPoolExecutor(len(jobs)) as pool:
            for _ in pool.map(send, streams, [data for _, data in jobs]):
                worst = max(worst, resident(pid) - before)
        check_serves(where)
        worst = max(worst, resident(pid) - before)
    assert worst < PARTIAL_BYTES_MAX + BODIES_BYTES_MAX + SLACK_BYTES
