"""A real peer with few file descriptors and many connections still answers probes, peers and clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from onyxq import Client
from tests.interfaces.live_world import Wire

pytestmark = pytest.mark.long


FILES_MAX = 256
TOKEN, SECRET = "a-token-of-everything", "what the peers share"
PATIENCE_S = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Return the addresses of a peer that requires tokens and may open `FILES_MAX` files."""
    limited = ["sh", "-c", f'ulimit -n {FILES_MAX} && exec "$@"', "sh"]
    command = [
        *limited,
        sys.executable,
        "-m",
        "onyxq",
        "peer",
        "start",
        "--json",
        "--data",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "ONYXQ_TOKENS": f"{TOKEN}=admin", "ONYXQ_PEER_SECRET": SECRET},
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def connections(stack: ExitStack, address: str, count: int, said: bytes = b"") -> None:
    """Open a number of connections that stay open as long as the peer allows."""
    host, port = address.rsplit(":", 1)
    for _ in range(count):
        with suppress(ConnectionError):
            stream = stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
            stream.sendall(said)


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nhost: ", PREFACE], ids=["nothing", "part", "http2"])
def test_a_peer_with_few_descriptors_is_reached_by_peers_and_probes(peer: dict[str, Any], said: bytes) -> None:
    """Clients without a credential open twice as many connections to each port as it has descriptors."""
    with Wire(peer["listen"], hello={"role": "client", "credential": TOKEN}) as wire:
        hello = wire.greeting[2] | {"role": "peer", "credential": SECRET, "node": "n"}
    with ExitStack() as stack:
        connections(stack, peer["http"], 2 * FILES_MAX, said)
        connections(stack, peer["listen"], 2 * FILES_MAX)
        with httpx.Client(base_url=f"http://{peer['http']}", timeout=PATIENCE_S, trust_env=False) as http:
            for path in ("/livez", "/readyz"):
                assert http.get(path, headers={"connection": "close"}).status_code == 200
        with Wire(peer["listen"], hello=hello) as wire:
            assert wire.greeting[0] == "onyxq", wire.greeting
        with Client(peer["listen"], token=TOKEN) as client:
            assert client.enqueue("q", b"x")
