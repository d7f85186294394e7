"""``onyxq task get`` and ``task log`` read archives without a cluster, in the shape of the live answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from onyxq.core import facts
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.tasks import presented
from tests.conformance.store_world import World, in_trio, put, tasks
from tests.conformance.task_archive_world import archived, completed, live, progress, said, task_id

TASK = task_id()


@in_trio
async def _written(directory: Path) -> None:
    async with World("memory", directory / "store").store() as store:
        rows = [tasks(TASK, 1, format="json"), said(TASK, 1, facts.GRANTED, 10), progress(TASK, 0)]
        await put(store, *rows, completed(TASK, [b'{"sent": true}']))
        await archived(store, directory / "archive")
        task = live(store, TASK)
        assert task is not None
        (directory / "live.json").write_text(json.dumps(presented(task.task)))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where ``archive`` lies, and what a live cluster would print."""
    _written(directory=tmp_path)
    return tmp_path


def test_a_purged_task_is_printed_as_the_cluster_would(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same document, with its claims."""
    assert run(["task", "get", TASK.hex(), "--archive", str(directory / "archive"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((directory / "live.json").read_text())
    assert run(["task", "get", TASK.hex(), "--archive", str(directory / "archive")]) == 0
    assert "worker 10" in capsys.readouterr().out


def test_the_updates_of_a_purged_task_are_printed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that counted."""
    assert run(["task", "log", TASK.hex(), "--archive", str(directory / "archive"), "--json"]) == 0
    assert [one["seq"] for one in json.loads(capsys.readouterr().out)["updates"]] == [0]


def test_a_task_that_is_in_no_archive_is_not_found(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and a message that names the id."""
    assert run(["task", "get", task_id(99).hex(), "--archive", str(directory / "archive")]) == 3
    assert f"the archive has no task {task_id(99).hex()}" in capsys.readouterr().err
    assert run(["task", "get", TASK.hex(), "--archive", str(directory)]) == 3
    assert "is not an archive of tasks" in capsys.readouterr().err


def test_without_pyarrow_the_error_names_the_extra(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["task", "get", TASK.hex(), "--archive", str(directory / "archive")]) == 1
    assert "pip install 'onyxq[archive]'" in capsys.readouterr().err
