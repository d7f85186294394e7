"""An unusable directory is refused at the start, in one line that names the setting."""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path

import pytest

import onyxq
from onyxq.errors import BadRequest, Conflict
from onyxq.interfaces.cli.main import run
from onyxq.system.directory_lock import lock_file

COMMANDS = [
    (["dev"], "data"),
    (["peer", "start", "--http", "off", "--listen", "127.0.0.1:0"], "data"),
    (["zookeeper", "start", "--port", "0"], "data"),
    *((["peer", "start", "--http", "off", "--listen", "127.0.0.1:0"], name) for name in ("archive", "task_archive")),
]


def unusable(tmp_path: Path) -> list[Path]:
    """A path that cannot be created, a file, and a path below a file."""
    file = tmp_path / "file"
    file.touch()
    return [Path("/proc/x"), file, file / "below"]


@pytest.mark.parametrize(("command", "setting"), COMMANDS, ids=lambda part: str(part))
def test_a_bad_directory_ends_the_command_with_its_name(
    tmp_path: Path, command: list[str], setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and no traceback, before anything is served."""
    data = [] if setting == "data" else ["--data", str(tmp_path / "data")]
    for bad in unusable(tmp_path):
        assert run([*command, *data, f"--{setting.replace('_', '-')}", str(bad)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {setting}: {bad}") and "Traceback" not in said


def test_an_embedded_cluster_refuses_a_bad_directory(tmp_path: Path) -> None:
    """The exception names the argument."""
    for bad in unusable(tmp_path):
        with pytest.raises(BadRequest) as refused:
            onyxq.open(bad)
        assert refused.value.field == "data" and str(bad) in refused.value.message
        assert len(traceback.extract_tb(refused.value.__traceback__)) <= 3, "frames of event loops tell nothing"


@pytest.mark.parametrize("file", ["log/lock", "node.lock"])
def test_a_directory_in_use_is_named_with_its_setting(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is the process that uses its log or its store."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    lock = lock_file(path, what="it", hint="")
    try:
        code = run(["peer", "start", "--http", "off", "--listen", "127.0.0.1:0", "--data", str(tmp_path)])
    finally:
        os.close(lock)
    said = capsys.readouterr().err
    assert code == Conflict.exit_code
    assert re.search(rf"^error: data: the .* {tmp_path}\S* is in use by process {os.getpid()}$", said, re.M), said
