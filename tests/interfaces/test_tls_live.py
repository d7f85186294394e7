"""A cluster with TLS: peers with certificates, clients that know the authority, and others."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
import trustme

from onyxq import Client
from onyxq.access.certificates import PLAIN, Certificates
from onyxq.access.grants import Access, Token
from onyxq.errors import BadRequest, Unavailable
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.interfaces.peer_config import PeerConfig, check_config
from onyxq.wire import tcp
from tests.interfaces.live_world import ANSWER_S_MAX, running

TOKEN, SECRET = "a token of some length", "what peers show each other"
ACCESS = Access((Token.of(TOKEN, "all", ["admin"]),), SECRET)
REFUSAL_S_MAX = 1.0
"""Time after which a silent client is disconnected in these tests, in seconds."""


def issued(authority: trustme.CA, home: Path, name: str, *identities: str) -> Certificates:
    """Make the files of a certificate for these names, and of its authority."""
    home.mkdir(exist_ok=True)
    made = authority.issue_cert(*identities)
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    made.private_key_and_cert_chain_pem.write_to_path(str(home / f"{name}.pem"))
    return Certificates(str(home / "ca.pem"), str(home / f"{name}.pem"), str(home / f"{name}.pem"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the files."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def peers(home: Path) -> Certificates:
    """Files of the peers."""
    return issued(trustme.CA(), home, "peer", "127.0.0.1")


@pytest.fixture(scope="module")
def strangers(home: Path) -> Certificates:
    """Files of an unknown authority."""
    return issued(trustme.CA(), home / "strangers", "peer", "127.0.0.1")


@pytest.fixture(scope="module")
def cluster(peers: Certificates) -> Iterator[LocalCluster]:
    """Three peers with TLS and tokens."""
    with running(peers=3, http=True, access=ACCESS, certificates=peers) as cluster:
        yield cluster


def knows(certificates: Certificates) -> Certificates:
    """A client that knows the authority and has no certificate."""
    return Certificates(ca=certificates.ca)


@pytest.mark.long
def test_a_task_lives_its_life_on_three_peers(cluster: LocalCluster, peers: Certificates) -> None:
    """This requires that peers reach each other; clients need no certificate."""
    with Client(cluster.addresses, token=TOKEN, tls=knows(peers)) as client:
        (task,) = client.enqueue_many("mail", [b"x"], w=3)
        (claim,) = client.claim(["mail"], wait_ms=20_000, worker="w")
        client.complete(claim)
        assert client.get(task).state == "completed"


def test_http_answers_over_tls_and_only_there(cluster: LocalCluster, peers: Certificates) -> None:
    """It uses a current version of TLS, and does not answer without TLS."""
    host = cluster.http_addresses[0]
    headers = {"authorization": f"Bearer {TOKEN}"}
    context = ssl.create_default_context(cafile=peers.ca)
    with httpx.Client(verify=context, timeout=ANSWER_S_MAX, trust_env=False, headers=headers) as client:
        assert client.get(f"https://{host}/v1/cluster").status_code == 200
        big = {"tasks": [{"queue": "http", "data": "x" * 500_000}]}
        assert client.post(f"https://{host}/v1/tasks", json=big).status_code == 201
        with pytest.raises(httpx.TransportError):
            client.get(f"http://{host}/livez")
    with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://{host}/livez")


def test_who_does_not_know_the_authority_shows_no_token(cluster: LocalCluster, strangers: Certificates) -> None:
    """A server without a valid certificate gets no token, nor does a server without TLS."""
    for tls in (knows(strangers), PLAIN):
        with pytest.raises(Unavailable), Client(cluster.addresses[0], token=TOKEN, tls=tls, timeout_ms=1_500) as client:
            client.queues()


def greeting(cluster: LocalCluster, certificates: Certificates, **hello: Any) -> Any:
    """Return the TCP port's answer to a hello over TLS; None if it closes."""
    host, port = cluster.addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX) as plain:
        with certificates.connecting().wrap_socket(plain, server_hostname=host) as stream:
            body = msgpack.packb(["onyxq", 1, hello])
            try:
                stream.sendall(struct.pack("<I", len(body)) + body)
                size = struct.unpack("<I", stream.recv(4))[0]
                return msgpack.unpackb(stream.recv(size), strict_map_key=False)
            except (ConnectionError, ssl.SSLError, struct.error):
                return None


def test_only_who_has_a_certificate_is_a_peer(
    cluster: LocalCluster, peers: Certificates, strangers: Certificates
) -> None:
    """The secret alone is not enough; a certificate of another authority fails the connection."""
    hello = {"role": "peer", "credential": SECRET, "cluster_id": cluster_id(cluster, peers), "node": "n"}
    told = greeting(cluster, knows(peers), **hello)
    assert told[:2] == [0, 1] and (told[2]["code"], told[2]["field"]) == ("unauthorized", "tls_cert")
    assert greeting(cluster, peers, **hello)[0] == "onyxq"
    foreign = Certificates(peers.ca, strangers.cert, strangers.key)
    assert greeting(cluster, foreign, role="client", credential=TOKEN) is None


def test_a_client_that_names_an_authority_trusts_none_of_the_machine(
    cluster: LocalCluster, peers: Certificates, strangers: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that names none trusts those of the machine; here this is the peers' authority."""
    monkeypatch.setenv("SSL_CERT_FILE", peers.ca)
    hello = {"role": "client", "credential": TOKEN}
    assert greeting(cluster, Certificates(cert=peers.cert, key=peers.key), **hello)[0] == "onyxq"
    with pytest.raises(ssl.SSLCertVerificationError):
        greeting(cluster, knows(strangers), **hello)


def cluster_id(cluster: LocalCluster, peers: Certificates) -> str:
    """Return the cluster's id, as clients get it."""
    with Client(cluster.addresses[0], token=TOKEN, tls=knows(peers)) as client:
        return str(client.call("routes", {})["cluster_id"])


def test_half_open_connections_are_closed_and_others_answered(
    cluster: LocalCluster, peers: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some send nothing, some start a handshake and stop; this holds for both ports."""
    monkeypatch.setattr(tcp, "HANDSHAKE_TIMEOUT_S", REFUSAL_S_MAX)
    hello = b"\x16\x03\x01\x02\x00\x01\x00"  # the beginning of a handshake
    sockets = []
    for place in range(60):
        host, port = cluster.addresses[0].rsplit(":", 1)
        one = socket.create_connection((host, int(port)), timeout=ANSWER_S_MAX)
        one.sendall(hello[: place % 8])
        sockets.append(one)
    try:
        with Client(cluster.addresses[0], token=TOKEN, tls=knows(peers)) as client:
            assert client.enqueue_many("flood", [b"x"] * 10)
        for one in sockets:
            try:
                assert one.recv(100) in (b"",)
            except ConnectionResetError:
                continue
    finally:
        for one in sockets:
            one.close()


def test_the_command_line_speaks_tls(
    cluster: LocalCluster, peers: Certificates, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set by a flag or by the environment."""
    command = ["queue", "list", "--connect", cluster.addresses[0], "--json"]
    monkeypatch.setenv("ONYXQ_TOKEN", TOKEN)
    assert run([*command, "--tls-ca", peers.ca]) == 0
    monkeypatch.setenv("ONYXQ_TLS_CA", peers.ca)
    assert run(command) == 0
    with Client(cluster.addresses[0], token=TOKEN) as client:
        assert client.call("health", {})["live"]
    assert TOKEN not in capsys.readouterr().out


def test_files_that_are_not_what_they_should_be_are_named(peers: Certificates, tmp_path: Path) -> None:
    """A peer needs all three, and each is checked before it starts."""
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    for wrong, field in (
        (Certificates(ca=peers.ca), "tls_cert"),
        (Certificates(cert=peers.cert, key=peers.key), "tls_ca"),
        (Certificates(peers.ca, peers.cert), "tls_key"),
        (Certificates(str(junk), peers.cert, peers.key), "tls_ca"),
        (Certificates(peers.ca, str(junk), peers.key), "tls_cert"),
        (Certificates(peers.ca, str(tmp_path / "none.pem"), peers.key), "tls_cert"),
    ):
        with pytest.raises(BadRequest) as raised:
            check_config(PeerConfig(data=str(tmp_path), listen="127.0.0.1:0", certificates=wrong))
        assert raised.value.field == field
