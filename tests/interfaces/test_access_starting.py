"""Listening addresses of a peer, and its checks of credentials before the start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from onyxq.access.grants import Access, Token
from onyxq.access.loopback import check_listening, is_loopback
from onyxq.errors import BadRequest
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.peer_config import PeerConfig, check_config

ASKS = Access((Token.of("a token of some length", "t", ["read"]),), "what peers show each other")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("192.168.7.7", False),
        ("8.8.8.8", False),
        ("fe80::1%lo", False),
        ("no.such.host.invalid", False),
    ],
)
def test_loopback_is_known(host: str, own: bool) -> None:
    """A name counts only if all its addresses are loopback."""
    assert is_loopback(host) == own


def test_a_name_with_another_address_beside_loopback_is_not_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines reach the server at that address."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: found)
    assert not is_loopback("both.example")
    found.pop()
    assert is_loopback("both.example")


@pytest.mark.parametrize("field", ["listen", "http"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:7400", "10.1.2.3:7400"])
def test_no_peer_listens_for_others_without_credentials(tmp_path: Path, field: str, address: str) -> None:
    """It does so only with an explicit setting."""
    places = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"} | {field: address}
    with pytest.raises(BadRequest) as raised:
        check_config(PeerConfig(data=str(tmp_path), **places))
    assert raised.value.field == field and "--allow-anyone" in raised.value.advice
    check_config(PeerConfig(data=str(tmp_path), access=ASKS, **places))
    check_config(PeerConfig(data=str(tmp_path), allow_anyone=True, **places))
    check_listening("127.0.0.1:1", field="listen", asks=False, allow_anyone=False)


@pytest.mark.parametrize("command", [["dev"], ["peer", "start"]])
def test_the_commands_refuse_too(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They exit with code 2 before they start anything."""
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--http", "0.0.0.0:0", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]) == 2
    assert "allow-anyone" in capsys.readouterr().err


def test_tokens_need_a_secret_of_the_peers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise any client could act as a peer; jobs need a token of their own too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONYXQ_TOKENS", "a-token-of-some-length=read")
    assert run(["peer", "start", "--zookeeper", "127.0.0.1:1"]) == 2
    assert "peer_secret" in capsys.readouterr().err
    assert run(["peer", "start", "--spark"]) == 2
    said = capsys.readouterr().err
    assert "ONYXQ_TOKEN" in said and "a-token-of-some-length" not in said


@pytest.mark.parametrize("command", [["peer", "start"], ["dev"]])
def test_without_tokens_spark_is_hosted_only_if_somebody_says_so(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine can submit jobs there, which run code; the error names the flag."""
    monkeypatch.chdir(tmp_path)
    assert run([*command, "--spark"]) == 2
    assert "--allow-local-code" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
