"""``onyxq doctor`` finds what is wrong, says so, and ends with 1; what is right it does not complain of."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from onyxq.errors import Incomplete
from onyxq.interfaces.cli import doctor
from onyxq.interfaces.cli.main import run
from onyxq.log.zookeeper_server import ZookeeperServer, find_jars
from onyxq.system.java import find_java
from onyxq.system.settings import SETTINGS, Known
from tests.interfaces.live_world import Wire, running

FREE = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
PATIENCE_S = 60
LOOK_EVERY_S = 0.05
NOWHERE = ["--connect", "127.0.0.1:1"]


@pytest.fixture
def examine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command; its exit code and, by check, what it found."""

    def call(*arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
        capsys.readouterr()
        code = run(["doctor", "--json", "--data", str(tmp_path / "data"), *FREE, *arguments])
        said = json.loads(capsys.readouterr().out)
        found: dict[str, list[dict[str, str]]] = {}
        for one in said["checks"]:
            found.setdefault(one["check"], []).append(one)
        assert said["ok"] == (code == 0) == all(one["state"] != "failed" for one in said["checks"])
        assert all(one["hint"] for one in said["checks"] if one["state"] == "warning")
        return code, found

    return call


@contextmanager
def answering(said: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a server that gives the same answer to all; return its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    with tls.wrap_socket(connection, server_side=True) if tls else connection as spoken:
                        spoken.recv(16)
                        spoken.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_machine_before_its_first_peer_is_fine(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No peer serves yet, which is a warning; if a peer is named, it is an error."""
    monkeypatch.setitem(cast(dict[str, Known], SETTINGS), "connect", Known("127.0.0.1:1", ""))
    code, found = examine()
    assert code == 0
    assert {"versions", "java", "disk", "disk sync", "listen", "http", "credentials", "zookeeper", "cluster"} == set(
        found
    )
    assert found["cluster"][0]["state"] == "warning"
    code, found = examine(*NOWHERE)
    assert (code, found["cluster"][0]["state"]) == (1, "failed")


def test_a_port_in_use_is_told_from_one_that_cannot_be(examine: Any) -> None:
    """Something that listens may be the peer itself; an address of another machine cannot be listened on."""
    with answering(b"") as address:
        _, found = examine("--listen", address)
    assert (found["listen"][0]["state"], "in use" in found["listen"][0]["found"]) == ("warning", True)
    code, found = examine("--http", "192.0.2.1:80")
    assert (code, found["http"][0]["state"]) == (1, "failed")
    assert examine("--http", "nowhere")[1]["http"][0]["state"] == "failed"
    assert "http" not in examine("--http", "off")[1]


def test_a_peer_that_would_not_start_for_want_of_credentials_is_told(examine: Any, tmp_path: Path) -> None:
    """Listening for others needs tokens, or a plain word; a file of tokens must be well-formed."""
    everywhere = ["--listen", "0.0.0.0:0"]
    code, found = examine(*everywhere)
    assert (code, found["credentials"][0]["state"]) == (1, "failed")
    assert examine(*everywhere, "--allow-anyone")[1]["credentials"][0]["state"] == "warning"
    file = tmp_path / "access.toml"
    file.touch(mode=0o600)
    file.write_text('[[tokens]]\ntoken = "sixteen characters"\nroles = ["read"]\n')
    assert examine(*everywhere, "--access", str(file))[1]["credentials"][0]["found"].startswith("1 tokens")
    file.write_text("[[tokens]]\n")
    assert examine("--access", str(file))[1]["credentials"][0]["state"] == "failed"


def test_a_file_in_the_way_of_the_data_fails(examine: Any, tmp_path: Path) -> None:
    """Where a directory should be."""
    (tmp_path / "file").write_text("")
    assert examine("--data", str(tmp_path / "file/data"))[1]["disk"][0]["state"] == "failed"


def test_a_disk_that_is_nearly_full_fails(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the system says of it."""
    kind = type(shutil.disk_usage("/"))
    for free, state in ((4, "failed"), (14, "warning"), (50, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: kind(100, 100 - free, free))
        assert examine()[1]["disk"][0]["state"] == state


def test_a_secret_that_zookeeper_s_writers_learn_is_told(examine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers show their secret to the addresses in the log, which any client may change without a credential."""
    monkeypatch.setenv("ONYXQ_TOKENS", "a-token-of-some-length=admin")
    monkeypatch.setenv("ONYXQ_PEER_SECRET", "what the peers share")
    for auth, state in (("", "warning"), ("digest:u:p", "ok")):
        monkeypatch.setenv("ONYXQ_ZOOKEEPER_AUTH", auth)
        _, found = examine("--zookeeper", "127.0.0.1:1")
        assert found["credentials"][0]["state"] == state
        assert ("secret of the peers" in found["credentials"][0]["found"]) == (state == "warning")


def test_zookeeper_that_is_away_old_or_silent_is_told(examine: Any) -> None:
    """One finding for each server, and one about the majority."""
    old = b"Zookeeper version: 3.4.14-1, built on 2019\nMode: follower\n"
    with answering(old) as first, answering(b"srvr is not executed because it is not in the whitelist.") as second:
        code, found = examine("--zookeeper", f"{first},{second},127.0.0.1:1,nowhere")
    assert code == 1
    assert [one["state"] for one in found["zookeeper"]] == ["failed", "warning", "failed", "failed"]
    assert "3.6" in found["zookeeper"][0]["hint"]
    assert found["zookeeper quorum"][0]["state"] == "failed"


def test_zookeeper_behind_tls_is_asked_with_its_certificate_checked(examine: Any, tmp_path: Path) -> None:
    """A server of another authority is none."""
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    for name, one in (("right", authority), ("wrong", trustme.CA())):
        one.cert_pem.write_to_path(str(tmp_path / name))
    with answering(b"Zookeeper version: 3.9.3-1, built on 2024\nMode: standalone\n", tls) as address:
        _, right = examine("--zookeeper", address, "--zookeeper-ca", str(tmp_path / "right"))
        code, wrong = examine("--zookeeper", address, "--zookeeper-ca", str(tmp_path / "wrong"))
    assert right["zookeeper"][0]["found"].endswith("version 3.9, standalone")
    assert (code, wrong["zookeeper"][0]["state"]) == (1, "failed")


def test_zookeeper_that_serves_is_fine(examine: Any, tmp_path: Path) -> None:
    """A real one."""
    try:
        find_java(), find_jars()
    except Incomplete as error:
        pytest.skip(error.message)
    with ZookeeperServer(tmp_path / "zookeeper") as server:
        _, found = examine("--zookeeper", server.hosts)
    (one,) = found["zookeeper"]
    assert one["state"] == "ok" and "version 3." in one["found"] and "standalone" in one["found"]


def test_a_cluster_that_serves_is_fine(examine: Any) -> None:
    """Each peer is asked itself."""
    with running(peers=2) as served:
        until = time.monotonic() + PATIENCE_S
        with Wire(served.addresses[0]) as wire:
            while (about := wire.call("cluster", {}))["not_ready"] or about["peers"] < 2 or about["under_replicated"]:
                assert time.monotonic() < until, about
                time.sleep(LOOK_EVERY_S)
        code, found = examine("--connect", served.addresses[0])
        assert code == 0, found
    peers = [one for name, (one, *_) in found.items() if name.startswith("peer ")]
    assert len(peers) == 2 and all("records behind" in one["found"] for one in peers)
    assert len([name for name in found if name.startswith("clock")]) == 3


def test_clocks_are_judged_by_what_a_ring_bears() -> None:
    """Over five seconds a peer leaves."""
    assert [doctor._clock("clock", ms).state for ms in (0, 999, 1_001, 5_001)] == ["ok", "ok", "warning", "failed"]
