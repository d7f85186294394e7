"""The examples of README.rst work: its commands and Python run, and print the shown output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from tests.interfaces.live_world import running

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.rst").read_text("utf-8")
DEMO_SECONDS_MAX = 180
ADDRESS = "127.0.0.1:7400"


def commands() -> list[list[str]]:
    """Return every ``onyxq`` command line of the indented blocks."""
    joined = README.replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.startswith("    onyxq ")]


def programs() -> list[str]:
    """Return the Python blocks."""
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", README)
    return [textwrap.dedent(block) for block in blocks]


@pytest.mark.parametrize("typed", commands(), ids=" ".join)
def test_commands_parse(typed: list[str]) -> None:
    """Every command on the page is valid."""
    assert build(COMMANDS, NOUNS).parse_args(typed[1:]).command


def test_the_readme_shows_commands_and_programs() -> None:
    """The tests of this module find examples."""
    assert len(commands()) >= 6
    assert len(programs()) == 5


@pytest.mark.long
def test_the_demo_does_what_the_first_screen_says() -> None:
    """``onyxq demo`` without arguments counts the standard library exactly and loses a peer on the way."""
    ended = subprocess.run(
        [sys.executable, "-m", "onyxq", "demo"],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
    )
    assert ended.returncode == 0, ended.stderr
    assert "exact: yes" in ended.stdout
    assert "3 peers serve" in ended.stderr
    assert "stopping peer" in ended.stderr


@pytest.fixture
def first_hour(tmp_path: Path) -> Path:
    """A directory with the three files of the first hour."""
    tasks, schedule, test, web, _ = programs()
    (tmp_path / "tasks.py").write_text(f"{tasks}\n\n{schedule}", "utf-8")
    (tmp_path / "test_tasks.py").write_text(test, "utf-8")
    (tmp_path / "web.py").write_text(web, "utf-8")
    return tmp_path


def ran(here: Path, *command: str, code: int = 0, **variables: str) -> str:
    """Return what a command of Python prints in a directory."""
    ended = subprocess.run(
        [sys.executable, *command],
        check=False,
        cwd=here,
        env=os.environ | {"PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.long
def test_the_first_hour_shows_what_the_page_says(first_hour: Path) -> None:
    """The worker and every command are processes, as on the page; the cluster has free ports."""
    (said,) = re.findall(r'``completed: "([^`]+)"``::', README)
    with running() as cluster:
        place = {"ONYXQ_CONNECT": cluster.addresses[0]}
        started = [sys.executable, "-m", "onyxq", "worker", "start", "tasks:app"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), **place}
        with subprocess.Popen(started, cwd=first_hour, env=environment, stdout=subprocess.PIPE) as worker:
            try:
                call = ["-m", "onyxq", "task", "call", "tasks:send"]
                assert ran(first_hour, *call, "ann@example.org", "--wait", **place).endswith(f'completed: "{said}"\n')
                failed, _, why = ran(first_hour, *call, "nobody", "--wait", code=1, **place).partition(" failed: ")
                assert why == "ValueError: not an address: nobody\n"
                shown = ran(first_hour, "-m", "onyxq", "task", "get", failed, **place)
                assert "3 of 3" in shown and 'raise ValueError(f"not an address: {to}")' in shown
                assert ran(first_hour, "-c", _IN_A_PROGRAM, **place).split() == ["scheduled", "completed"]
                assert ran(first_hour, "-m", "onyxq", "task", "retry", failed, **place).strip() == "requeued: 1"
                assert ran(first_hour, "-c", _ORDERED, **place).strip() == said
            finally:
                worker.terminate()
            printed, _ = worker.communicate()
    assert printed.decode().startswith("sending to ann@example.org")


_IN_A_PROGRAM = """
from tasks import send

task = send.enqueue("ann@example.org")
task.result(timeout="30s")
print(send.options(delay="10m").enqueue("ann@example.org").state(), task.state())
"""
_ORDERED = """
from fastapi.testclient import TestClient
from tasks import send
from web import api

with TestClient(api) as client:
    answer = client.post("/orders", params={"email": "ann@example.org"})
    assert answer.status_code == 202
    task = send.handle(answer.json()["task"])
    task.result(timeout="30s")
    print(client.get(f"/tasks/{task.id}").json()["result"])
"""


@pytest.mark.long
def test_the_test_of_the_first_hour_passes(first_hour: Path) -> None:
    """pytest finds the fixture without any configuration."""
    assert "1 passed" in ran(first_hour, "-m", "pytest", "-q")


def test_the_first_hour_is_short() -> None:
    """At most ten commands, the installation included, and forty lines of Python."""
    page = README.split("\nThe first hour\n", 1)[1].split("\nSee it work\n", 1)[0]
    lines = [line for program in programs()[:4] for line in program.splitlines() if line.strip()]
    typed = re.findall(r"^    (?:onyxq|python3?|\.|pip|hypercorn|curl) .*|``pytest``", page, re.MULTILINE)
    assert len(lines) <= 40
    assert 8 <= len(typed) <= 10


def test_the_client_claims_what_it_enqueued(capsys: pytest.CaptureFixture[str]) -> None:
    """The second program runs on a cluster; only the address differs."""
    with running() as cluster:
        code = programs()[-1].replace(ADDRESS, cluster.addresses[0])
        exec(compile(code, "README.rst", "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    assert repr(b"one") in shown
    assert repr(b"two") in shown


def test_the_figures_are_the_measured_ones() -> None:
    """Every figure of the table is on the page of figures."""
    table = README.split("\nFigures\n", 1)[1].split("So OnyxQ is", 1)[0]
    figures = re.findall(r"(\d+(?:,\d{3})|[\d.]+ ms)\b", table.split("what  ", 1)[1])
    page = (ROOT / "docs/performance.rst").read_text("utf-8")
    assert len(figures) >= 12
    assert [one for one in figures if one not in page] == []
