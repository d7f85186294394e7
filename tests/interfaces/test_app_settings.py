"""The settings of an application: from the program, from variables, from ``onyxq.toml``, or the defaults."""

from __future__ import annotations

import socket
import time
import traceback
from pathlib import Path

import pytest
import trio

from onyxq import App, AsyncClient, Client
from onyxq.errors import BadRequest, Unavailable
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.local_cluster import LocalCluster

FAST_S = 5.0
"""More than the second that an `App` waits, and far less than a request may take."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without variables of ours."""
    for name in ("CONNECT", "TOKEN", "CONFIG", "TLS_CA", "CONNECT_TIMEOUT_MS", "REQUEST_TIMEOUT_MS"):
        monkeypatch.delenv(f"ONYXQ_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_source_wins_over_the_next(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is the one of the command line; an application reads when it is used, not when it is imported."""
    app = App()
    assert (app.address, app.token) == ("127.0.0.1:7400", None)
    (here / "onyxq.toml").write_text('connect = "file:1"\ntoken = "of the file"\n')
    assert (app.address, app.token) == ("file:1", "of the file")
    monkeypatch.setenv("ONYXQ_CONNECT", "one:1, two:2")
    assert (app.address, app.token) == (["one:1", "two:2"], "of the file")
    given = App("given:1", token="given")
    assert (given.address, given.token) == ("given:1", "given")
    app.address = "set:1"
    assert app.address == "set:1"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("db.example", "db.example:7400"),
        ("7600", "127.0.0.1:7600"),
        ("[::1]", "[::1]:7400"),
        ("db:1", "db:1"),
        ("[::1]:2", "[::1]:2"),
    ],
)
def test_a_host_or_a_port_alone_is_an_address(given: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line, variables and the program treat it in the same way."""
    monkeypatch.setenv("ONYXQ_CONNECT", given)
    assert App().address == meant
    assert AsyncClient(given)._addresses == [meant]


def test_a_wrong_setting_is_named(here: Path) -> None:
    """A misspelt name in the file, and a wrong duration in the program."""
    (here / "onyxq.toml").write_text("conect = 'a:1'\n")
    with pytest.raises(BadRequest, match="did you mean connect"):
        _ = App().address
    with pytest.raises(BadRequest) as refused:
        App(connect_timeout_ms="soon")
    assert refused.value.field == "connect_timeout_ms"


def test_the_trusted_authority_of_the_file_is_used(here: Path) -> None:
    """A client of the application asks for TLS; the file that is missing is named."""
    (here / "onyxq.toml").write_text('tls_ca = "no-such-ca.pem"\n')
    with pytest.raises(BadRequest, match=r"no-such-ca\.pem"):
        _ = App().client


def free_address() -> str:
    """Return an address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.long
@pytest.mark.parametrize("silent", [False, True])
def test_it_fails_soon_when_no_peer_answers_and_says_what_to_do(here: Path, silent: bool) -> None:
    """This is so if the connection is refused, and if it is accepted without an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}" if silent else free_address()
        app = App(address)

        @app.task
        def send() -> None:
            """A task."""

        began = time.monotonic()
        with pytest.raises(Unavailable) as failed:
            send.enqueue()
        assert time.monotonic() - began < FAST_S
        shown = "".join(traceback.format_exception(failed.value))
        assert address in failed.value.message
        assert "onyxq/client/pool.py" not in "".join(traceback.format_exception(failed.value))
        assert "Hint: Is a peer running? Start one with `onyxq dev`" in shown
        app.close()


def test_a_silent_peer_does_not_hide_a_living_one(here: Path, tmp_path: Path) -> None:
    """Each known peer gets a share of the second."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with LocalCluster(peers=1, data=str(tmp_path)) as cluster:
                app = App([f"127.0.0.1:{silent.getsockname()[1]}", cluster.addresses[0]])
                count = await trio.to_thread.run_sync(lambda: app.client.count())
                assert count == {}
                await trio.to_thread.run_sync(app.close)

    trio.run(main)


def test_the_time_is_a_setting_and_a_client_may_have_it_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is the same for an application and for the command line."""
    with Client(free_address(), connect_timeout_ms="50ms") as client:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            client.count()
        assert time.monotonic() - began < FAST_S
    monkeypatch.setenv("ONYXQ_CONNECT_TIMEOUT_MS", "50")
    assert App()._settings().connect_timeout_ms == 50
    began = time.monotonic()
    assert run(["queue", "list", "--connect", free_address()]) == Unavailable.exit_code
    assert time.monotonic() - began < FAST_S
