"""The examples of README.rst work: its commands and Python run, and print the shown output."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from onyxq.interfaces.local_cluster import LocalCluster

README = (Path(__file__).resolve().parents[2] / "README.rst").read_text("utf-8")
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


def test_the_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python code runs on a cluster; only the address differs."""
    import trio

    async def main() -> None:
        async with LocalCluster(peers=1) as cluster:
            for program in programs():
                code = program.replace(ADDRESS, cluster.addresses[0])
                await trio.to_thread.run_sync(exec, compile(code, "README.rst", "exec"), {"__name__": "readme"})

    trio.run(main)
    shown = capsys.readouterr().out
    assert repr(b"one") in shown
    assert repr(b"two") in shown
