"""A Spark home for fast starts, built once for the installed versions by the first process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onyxq.spark import home

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("java")


def test_a_home_has_the_installed_programs_and_no_zip(tmp_path: Path) -> None:
    """Workers find PySpark where Python does; a second call finds the same home."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    found = home.find_home(environment)
    assert found.path.parent == tmp_path / "onyxq" / "spark"
    assert (found.path / "bin" / "spark-submit").exists()
    assert list((found.path / "python" / "lib").iterdir()) == []
    assert not found.archived
    assert home.find_home(environment) == found
    assert [path.name for path in found.path.parent.iterdir()] == [found.path.name]


def test_homes_of_what_is_gone_go_when_one_is_made(tmp_path: Path) -> None:
    """Homes of deleted environments are removed; those of installed ones and other files stay."""
    folder = tmp_path / "onyxq" / "spark"
    for name, jars in (("gone", tmp_path / "nowhere"), ("other", tmp_path), ("strange", None)):
        (folder / name).mkdir(parents=True)
        if jars is not None:
            (folder / name / "jars").symlink_to(jars)
    found = home.find_home({"XDG_CACHE_HOME": str(tmp_path)})
    assert {path.name for path in folder.iterdir()} == {"other", "strange", found.path.name}


def test_a_home_of_the_users_own_is_used_as_it_is(tmp_path: Path) -> None:
    """No archive is used, because it belongs to the installed jars."""
    found = home.find_home({"SPARK_HOME": str(tmp_path)})
    assert (found.path, found.archive, home.build_archive(found)) == (tmp_path, None, False)


@pytest.mark.long
def test_builders_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Four builders at once make one complete home."""
    program = "from onyxq.spark import home; print(home.find_home().path)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    builders = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert len(said) == 1
    assert [path.name for path in (tmp_path / "onyxq" / "spark").iterdir()] == [Path(said.pop()).name]


def test_an_archive_that_is_being_built_is_not_built_twice(tmp_path: Path) -> None:
    """The second builder leaves it to the first."""
    found = home.find_home({"XDG_CACHE_HOME": str(tmp_path)})
    with home._only_builder(found.path) as mine:
        assert mine
        assert home.build_archive(found) is False


def test_an_archive_that_is_there_is_not_built_again(tmp_path: Path) -> None:
    """This holds for any builder."""
    found = home.find_home({"XDG_CACHE_HOME": str(tmp_path)})
    assert found.archive is not None
    found.archive.write_bytes(b"")
    assert home.build_archive(found) is True


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says what to install."""
    assert home.missing() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    lacking = home.missing()
    assert lacking is not None
    assert "needs Java" in lacking.message
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    lacking = home.missing()
    assert lacking is not None
    assert "Java 17 or newer" in lacking.message
