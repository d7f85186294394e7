"""The examples under *Here* in docs/migration.rst work, and the names in its tables exist."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from onyxq import App, Client
from onyxq.core.queue_settings import SETTINGS
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from onyxq.testing import Cluster, open_cluster
from onyxq.worker import BlockingContext, Context
from onyxq.worker.app import TaskFunction, TaskHandle
from onyxq.worker.options import DEFAULTS

PAGE = (Path(__file__).resolve().parents[2] / "docs/migration.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: python\n   :caption: (\S+)\n\n((?:   .*\n|\n)+)")
HERE = [row[35:] for row in PAGE.splitlines() if re.match(r"(``|[a-z ]).{33}", row) and len(row) > 36]
"""The second columns of the tables, and other lines of that length."""


def code(caption: str) -> str:
    """Return the code that the page shows of a file."""
    (found,) = [textwrap.dedent(text) for name, text in BLOCK.findall(PAGE) if name == caption]
    return found


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a file of the page as a module."""
    made = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(code(f"{name}.py"), f"{name}.py", "exec"), made.__dict__)
    return made


def run(caption: str, of: Any) -> dict[str, Any]:
    """Run the calls of the page against an application."""
    found = dict(of.__dict__)
    exec(compile(code(caption), caption, "exec"), found)
    return found


@pytest.fixture
def cluster() -> Any:
    """A cluster in memory."""
    with open_cluster(peers=1, seed=1) as found:
        yield found


def test_the_shop_does_what_it_did_with_celery(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a retry, options of one call, a chord, and a periodic task."""
    shop = module("shop", monkeypatch)
    cluster.use(shop.app)
    found = run("calls.py", shop)
    cluster.start_worker(shop.app, queues=["default", "urgent"])
    cluster.drain(reach_s=3_600)
    assert sorted(shop.banked) == [("o1", 500, 2), ("o2", 700, 2)]
    assert [shop.charge.result(found[name]) for name in ("first", "second")] == ["o1 is paid", "o2 is paid"]
    assert shop.total.result(found["book"].last[0]) == 30
    late = cluster.client().get(found["second"])
    assert (late.queue, late.priority) == ("urgent", 5) and late.expires_ms
    assert [one["name"] for one in cluster.client().periodics()] == ["close"]


def test_the_reports_are_as_they_were_with_rq(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a dependency, a delay, and progress of a running task."""
    reports = module("reports", monkeypatch)
    cluster.use(reports.app)
    found = run("reporting.py", reports)
    cluster.drain(reach_s=3_600)
    assert reports.mailed == ["ann: report of march"]
    assert reports.collect.result(found["later"]) == "report of april"
    assert reports.collect.progress(found["report"]).note == "half way"


@pytest.mark.parametrize("command", sorted(set(re.findall(r"``(onyxq [^`]+)``", PAGE))))
def test_commands_can_be_typed(command: str) -> None:
    """A command in a table parses, or is the start of a valid one."""
    words = shlex.split(command.replace(" ID", " " + "0" * 40))[1:]
    if len(words) > 2:
        assert build(COMMANDS, NOUNS).parse_args(words).command
    else:
        assert " ".join(words) in {known.name for known in COMMANDS}


def test_options_and_settings_that_are_named_exist() -> None:
    """In the second columns this is every option with a value, queue setting, and method of a known class."""
    text = "\n".join(HERE)
    options = set(re.findall(r"``(\w+)=", text)) | set(re.findall(r"options\((\w+)=", text))
    assert len(options) > 8 and options <= set(DEFAULTS), options - set(DEFAULTS)
    settings = set(re.findall(r"queue set Q (\w+)=", text))
    assert settings and settings <= set(SETTINGS)
    for name, kinds in (
        ("client", [Client]),
        ("app", [App]),
        ("task", [TaskFunction, App, TaskHandle]),
        ("function", [TaskFunction]),
    ):
        methods = set(re.findall(rf"``@?{name}\.(\w+)", text))
        assert methods, name
        assert all(any(hasattr(kind, method) for kind in kinds) for method in methods), methods
    for method in ("progress", "log", "results"):
        assert f"{method}(" in text and hasattr(Context, method) and hasattr(BlockingContext, method)
