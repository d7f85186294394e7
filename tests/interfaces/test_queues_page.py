"""The examples of docs/queues.rst work: commands, Python, and the names in its tables."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest

from onyxq.client.policy import DEFAULTS
from onyxq.core.limits import members
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from onyxq.interfaces.http.routes.enqueue import NewTask
from tests.interfaces.live_world import running

PAGE = (Path(__file__).resolve().parents[2] / "docs/queues.rst").read_text("utf-8")
ADDRESS = "127.0.0.1:7400"


def commands() -> list[list[str]]:
    """Return every ``onyxq`` command line of the indented blocks."""
    return [shlex.split(line) for line in PAGE.splitlines() if line.startswith("    onyxq ")]


def first_column(after: str) -> set[str]:
    """Return the words in the first column of the table after a heading."""
    table = PAGE.split(after, 1)[1].split("\n====", 2)[2]
    return set(re.findall(r"^``([a-z_]+)``", table, re.MULTILINE))


@pytest.mark.parametrize("typed", commands(), ids=" ".join)
def test_commands_parse(typed: list[str]) -> None:
    """Every command on the page is valid."""
    assert build(COMMANDS, NOUNS).parse_args(typed[1:]).command


def test_every_option_of_a_task_is_told() -> None:
    """This is every option of Python and HTTP except the data and its format."""
    told = first_column("Options of a task\n")
    assert (DEFAULTS.keys() | members(NewTask).keys()) - told == {
        "data",
        "format",
        "id",
        "queue",
    }


def test_the_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python code runs on a cluster; only the address differs."""
    programs = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE)
    assert len(programs) == 3
    with running() as cluster:
        for program in programs:
            code = textwrap.dedent(program).replace(ADDRESS, cluster.addresses[0])
            exec(compile(code, "queues.rst", "exec"), {"__name__": "queues"})
    shown = capsys.readouterr().out
    assert "5 tasks" in shown
    assert "after [b'two pages']" in shown
    assert "completed {'completed': 4}" in shown
