"""The job in docs/jobs.rst can be submitted, and its calls exist."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import evolve

import onyxq
from onyxq.client import JobOutcome
from onyxq.core.jobs import lifetime
from onyxq.interfaces.cli.jobs import load_job
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Job, Output
from tests.interfaces.live_world import running
from tests.jobs.fake_host import FakeHosts, FakeLink, Message, obedient

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "jobs.rst").read_text("utf-8")
GUIDE = (DOCS / "from-onyx.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: python\n   :caption: (\S+)\n\n((?:   .*\n|\n)+)")


def code(caption: str, page: str = PAGE) -> str:
    """Return all code that the page shows of a file."""
    return "\n".join(textwrap.dedent(text) for name, text in BLOCK.findall(page) if name == caption)


def test_the_job_of_the_page_runs_as_its_calls_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is loaded from its file like on the command line, checked, submitted, sealed and waited for."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "orders.py"
    file.write_text(code("orders.py"))
    job = load_job(f"{file}:job")
    check(job)
    back = decode(encode(job))
    assert (back.id, back.workflow) == (job.id, job.workflow)

    def acts(link: FakeLink, order: Message) -> None:
        obedient(link, order)
        if order["do"] == "seal" or order.get("sealed"):
            link.say("completed", order["job"], order["version"])

    with running(slots=4, launch_host=FakeHosts(acts).launch) as cluster:
        shown = code("calls.py").replace("127.0.0.1:7400", cluster.addresses[0])
        exec(compile(shown, "calls.py", "exec"), {"job": job})
    assert capsys.readouterr().out == "completed \n"
    assert JobOutcome(id="x", state="completed").completed


def test_segments_go_where_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table names the destinations of each segment; functions of the page's first file are used."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    (tmp_path / "orders.py").write_text(code("orders.py"))
    made: dict[str, Any] = {}
    exec(compile(code("routes.py"), "routes.py", "exec"), made)
    job = load_job(f"{tmp_path / 'orders.py'}:job")
    job = evolve(
        job,
        workflow=[*job.workflow, ("parse", "broken")],
        catalog=[*job.catalog, Output("broken", queue="broken")],
        flow_conditions=made["conditions"],
    )
    rows = re.findall(r'^``"(\S+)"`` +(\S.*?)  ', PAGE, re.MULTILINE)
    assert len(rows) == 4
    for segment, wanted in rows:
        found = job.preview(rows={"orders": [segment]}).outputs
        assert sorted(name for name, got in found.items() if got) == sorted(re.findall(r"``(\w+)``", wanted))
    assert found["broken"] == [{"line": "bob", "error": "not enough values to unpack (expected 2, got 1)"}]


def test_names_and_states_of_the_page_exist() -> None:
    """Classes are public, keys are fields, and all states are listed."""
    fields = {one.name for cls in vars(onyxq.jobs.model).values() if attrs.has(cls) for one in attrs.fields(cls)}
    for name in ("own_host", "min_slots", "max_slots", "restarts", "checkpoint", "beside", "resume"):
        assert f"``{name}" in PAGE and name in fields, name
    for name in re.findall(r"(?<!`)`([A-Z]\w+)`(?!`)", PAGE):
        assert name in onyxq.__all__, name
    table = PAGE.split("\nstate ", 1)[1].split("\n\n", 1)[0]
    states = {lifetime.WAITING, lifetime.RUNNING, *lifetime.ENDED}
    assert set(re.findall(r"^``(\w+)``", table, re.MULTILINE)) == states
    assert {one.name for one in attrs.fields(Job)} >= {"tags", "zones", "scheduler"}


def test_the_job_of_the_guide_from_onyx_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be submitted unchanged, and the names of the guide are right."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "words.py"
    file.write_text(code("words.py", GUIDE))
    job = load_job(f"{file}:job")
    check(job)
    assert decode(encode(job)).workflow == job.workflow
    for name in re.findall(r"(?<!`)`([A-Z]\w+)`(?!`)", GUIDE):
        assert name in onyxq.__all__, name
    for call in ("submit", "kill", "wait", "subscribe", "gc"):
        assert f"``{call}``" in GUIDE and hasattr(onyxq.api, call)
