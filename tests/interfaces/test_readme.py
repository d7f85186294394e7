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
    assert len(programs()) == 2


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


def test_the_first_program_prints_what_the_page_says(tmp_path: Path) -> None:
    """A worker and the program are processes, as on the page; the cluster has free ports."""
    (tmp_path / "tasks.py").write_text(programs()[0], "utf-8")
    (said,) = re.findall(r"prints ``([^`]+)``::", README)
    with running() as cluster:
        environment = os.environ | {"ONYXQ_CONNECT": cluster.addresses[0], "PYTHONPATH": str(ROOT)}
        started = [sys.executable, "-m", "onyxq", "worker", "start", "tasks:app"]
        with subprocess.Popen(started, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as worker:
            try:
                ended = subprocess.run(
                    [sys.executable, "tasks.py"],
                    check=False,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
            finally:
                worker.terminate()
            shown, _ = worker.communicate()
    assert ended.stdout.split() == said.split(), ended.stderr
    assert shown.decode().startswith("sending to ann@example.org")


def test_the_client_claims_what_it_enqueued(capsys: pytest.CaptureFixture[str]) -> None:
    """The second program runs on a cluster; only the address differs."""
    with running() as cluster:
        code = programs()[1].replace(ADDRESS, cluster.addresses[0])
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
