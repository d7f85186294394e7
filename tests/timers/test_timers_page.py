"""The examples of docs/timers.rst and examples/timers work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from onyxq import Client
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.parser import build
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.live_world import running
from tests.timers.receivers import http_receiver

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/timers.rst").read_text("utf-8")
EXAMPLE_S_MAX = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Run one peer for all tests."""
    with running(http=True) as found:
        yield found


def block(before: str) -> str:
    """Return the indented block after a line of the page."""
    (found,) = re.findall(re.escape(before) + r"\n\n((?:    .*\n|\n)+)", PAGE)
    return textwrap.dedent(found)


def test_the_request_of_the_page_sets_a_timer(cluster: LocalCluster) -> None:
    """As curl sends it: the header, and the body."""
    words = shlex.split(block("Over HTTP, as Skyring has it::"))
    asked = [word.replace("127.0.0.1:7480", cluster.http_addresses[0]) for word in words]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=EXAMPLE_S_MAX).stdout
    assert " 201 " in answer.splitlines()[0]
    assert "location: /timer/order-7" in answer.splitlines()


def test_the_python_of_the_page_runs(cluster: LocalCluster) -> None:
    """A timer is set, replaced, read and cancelled."""
    with Client(cluster.addresses[0]) as client:
        code = block("``cancel``; in Python::").replace("order-7", "order-8")
        exec(compile(code, "timers.rst", "exec"), {"client": client})
        assert client.timer("order-8")["state"] == "cancelled"


def test_the_commands_of_the_page_can_be_typed() -> None:
    """Every command parses."""
    found = re.findall(r"``(onyxq [a-z]+ [a-z]+ [^`]+)``", PAGE)
    assert len(found) >= 2
    for typed in found:
        assert build(COMMANDS, NOUNS).parse_args(shlex.split(typed)[1:]).command


def test_the_example_is_called_back(cluster: LocalCluster) -> None:
    """It is called back once, with the last data of the timer."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples/timers/reminders.py"), cluster.addresses[0]],
        capture_output=True,
        text=True,
        check=False,
        timeout=EXAMPLE_S_MAX,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["tea: the tea is ready", "cake: cancelled"]


def test_the_commands_set_timers(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A timer is added on the command line and its callback arrives."""
    connect = ["--connect", cluster.addresses[0]]
    with http_receiver() as receiver:
        later = ["--in", "1h", "--uri", receiver.uri]
        assert run(["timer", "add", "--id", "c1", *later, "--data", '{"a": 1}', *connect]) == 0
        assert run(["timer", "add", "--id", "c1", *later, *connect]) == 4
        assert run(["timer", "replace", "c1", "--in", "1ms", "--uri", receiver.uri, "--text", "b=1", *connect]) == 0
        (request,) = receiver.until(1)
        assert (request.method, request.body) == ("POST", b"b=1")
        assert run(["timer", "add", "--id", "c2", *later, *connect]) == 0
        assert run(["timer", "cancel", "c2", *connect]) == 0
        assert run(["timer", "cancel", "c2", *connect]) == 3
        assert run(["timer", "add", *later, "--transport", "zmq", *connect]) == 2
        capsys.readouterr()
        assert run(["timer", "list", "--state", "cancelled", *connect]) == 0
        assert "c2" in capsys.readouterr().out
        assert run(["timer", "show", "c2", *connect]) == 0
        assert "cancelled" in capsys.readouterr().out
