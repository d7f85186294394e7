"""Tokens and certificates that change while a peer runs: after SIGHUP they count, or the log says why not."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
import trustme

from onyxq import Client
from onyxq.access.certificates import Certificates
from onyxq.errors import Unauthorized
from tests.interfaces.live_world import ANSWER_S_MAX, Wire

PATIENCE_S = 120.0
LEAVING, STAYING, COMING = "a token that goes", "a token that stays", "a token that comes"
LONG_WAIT_MS = 600_000
TAKEN, REFUSED = "were read again", "stay as they were"


class Running:
    """A peer in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        told = json.loads(self._line(process.stdout))
        self.address, self.http = str(told["listen"]), str(told["http"])

    def renew(self) -> str:
        """Let it read tokens and certificates again; return the log line with the result."""
        self._process.send_signal(signal.SIGHUP)
        while True:
            line = self._line(self._process.stderr)
            if TAKEN in line or REFUSED in line:
                return line

    def _line(self, stream: IO[str] | None) -> str:
        assert stream is not None
        line = stream.readline()
        assert line, "the peer ended"
        return line


@contextmanager
def peer(data: Path, **settings: str) -> Iterator[Running]:
    """Run a peer until the end, and stop it properly."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {f"ONYXQ_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "onyxq", "peer", "start", "--json", "--data", str(data)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(PATIENCE_S, process.kill)
        guard.start()
        try:
            yield Running(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
        finally:
            guard.cancel()
            process.kill()


def written(path: Path, tokens: Mapping[str, str], *, secret: str = "") -> None:
    """Write an access file with these tokens and their roles."""
    lines = [f'peer_secret = "{secret}"'] if secret else []
    lines += [f'[[tokens]]\ntoken = "{token}"\nroles = ["{role}"]' for token, role in tokens.items()]
    path.write_text("\n".join(lines), "utf-8")
    path.chmod(0o600)


def wire(peer: Running, token: str) -> Wire:
    """A connection over TCP with a token."""
    return Wire(peer.address, hello={"role": "client", "credential": token})


def queues(client: httpx.Client, token: str) -> int:
    """Return the HTTP status for a token."""
    return client.get("/v1/queues", headers={"authorization": f"Bearer {token}"}).status_code


def test_a_token_that_is_taken_back_is_worth_nothing_at_once(tmp_path: Path) -> None:
    """This holds for new requests, open connections and waiting requests; other clients are not affected."""
    file = tmp_path / "access.toml"
    written(file, {LEAVING: "admin", STAYING: "read"})
    with (
        peer(tmp_path / "data", access=str(file)) as running,
        httpx.Client(base_url=f"http://{running.http}", timeout=PATIENCE_S, trust_env=False) as client,
        ThreadPoolExecutor(1) as aside,
        wire(running, LEAVING) as leaving,
        wire(running, STAYING) as staying,
    ):
        claim = {"queues": ["mail"], "wait_ms": LONG_WAIT_MS}
        waits = aside.submit(client.post, "/v1/claims", json=claim, headers={"authorization": f"Bearer {LEAVING}"})
        leaving.send([1, "claim", {"queues": ["mail"], "max": 1, "lease_ms": None, "wait_ms": LONG_WAIT_MS}])
        assert staying.call("queues", {})["queues"] == [] and queues(client, COMING) == 401

        written(file, {STAYING: "read", COMING: "read"})
        assert "2 tokens" in running.renew()
        assert leaving.goodbye() == []
        assert [queues(client, token) for token in (LEAVING, STAYING, COMING)] == [401, 200, 200]
        assert waits.result().json().get("claims", []) == []
        assert staying.call("queues", {})["queues"] == []
        with wire(running, COMING) as coming, wire(running, LEAVING) as refused:
            assert coming.call("queues", {})["queues"] == []
            assert refused.greeting[2]["code"] == "unauthorized"
        with Client(running.address, token=LEAVING) as gone, pytest.raises(Unauthorized):
            gone.queues()

        written(file, {STAYING: "produce", COMING: "read"})
        assert TAKEN in running.renew()
        assert staying.goodbye() == [], "it may do something else now"
        assert queues(client, STAYING) == 403


def test_what_cannot_be_taken_changes_nothing(tmp_path: Path) -> None:
    """The log says what is wrong, without a secret."""
    file = tmp_path / "access.toml"
    written(file, {STAYING: "read"}, secret="what peers show each other")
    with (
        peer(tmp_path / "data", access=str(file)) as running,
        httpx.Client(base_url=f"http://{running.http}", timeout=ANSWER_S_MAX, trust_env=False) as client,
        wire(running, STAYING) as open_one,
    ):
        bad: list[tuple[str, Any]] = [
            ("is not TOML", lambda: file.write_text("[[tokens]\n")),
            ("begin or cease", lambda: file.write_text("")),
            ("peer_secret", lambda: written(file, {COMING: "read"}, secret="another secret of peers")),
            ("unknown role", lambda: written(file, {COMING: "no-such-role"})),
            ("all users", lambda: (written(file, {COMING: "read"}), file.chmod(0o644))),
            ("No such file", file.unlink),
        ]
        for said, spoil in bad:
            spoil()
            line = running.renew()
            assert REFUSED in line and said in line and COMING not in line and "another secret" not in line, line
            assert [queues(client, token) for token in (STAYING, COMING)] == [200, 401]
            assert open_one.call("queues", {})["queues"] == []


def issued(authority: trustme.CA, home: Path) -> None:
    """Files of a peer's certificate and of its authority."""
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(home / "peer.pem"))


def knows(authority: trustme.CA) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts only this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def shown_to(running: Running, authority: trustme.CA) -> list[bool]:
    """Return whether TCP and HTTP show a certificate of an authority."""
    found = []
    for address in (running.address, running.http):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX) as plain:
            try:
                knows(authority).wrap_socket(plain, server_hostname=host).close()
                found.append(True)
            except ssl.SSLCertVerificationError:
                found.append(False)
    return found


def test_a_new_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    """An incomplete one is not used; open connections continue."""
    old, new = trustme.CA(), trustme.CA()
    issued(old, tmp_path)
    files = {"tls_ca": str(tmp_path / "ca.pem")}
    files |= dict.fromkeys(("tls_cert", "tls_key"), str(tmp_path / "peer.pem"))
    with peer(tmp_path / "data", **files) as running:
        with httpx.Client(verify=knows(old), timeout=PATIENCE_S, trust_env=False) as before:
            assert before.get(f"https://{running.http}/livez").status_code == 200
            whole = (tmp_path / "peer.pem").read_text()
            (tmp_path / "peer.pem").write_text(whole[: len(whole) // 2])
            assert REFUSED in running.renew()
            assert shown_to(running, old) == [True, True]
            issued(new, tmp_path)
            assert TAKEN in running.renew()
            assert shown_to(running, new) == [True, True] and shown_to(running, old) == [False, False]
            assert before.get(f"https://{running.http}/livez").status_code == 200
        with Client(running.address, tls=Certificates(ca=files["tls_ca"])) as client:
            assert client.call("health", {})["live"]
