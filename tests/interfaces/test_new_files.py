"""Files that are created where other users may create files too."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from onyxq.errors import BadRequest, Corrupt
from onyxq.history.backup.directories import Directories
from onyxq.history.backup.file import KIND
from onyxq.history.file_format import HistoryFileWriter, open_file
from onyxq.system.directories import close_to_others, create
from onyxq.system.directory_lock import lock_file


@pytest.mark.parametrize("there", ["a link", "a file", "a link to nothing"])
def test_a_new_file_is_never_made_through_what_has_its_name(tmp_path: Path, there: str) -> None:
    """A link of another user could make us overwrite one of our files."""
    ours, new = tmp_path / "ours", tmp_path / "new"
    ours.write_bytes(b"ours")
    if there == "a file":
        new.write_bytes(b"theirs")
        new.chmod(0o666)
    else:
        new.symlink_to(ours if there == "a link" else tmp_path / "nothing")
    with create(new) as file:
        file.write(b"secret")
    assert ours.read_bytes() == b"ours" and not (tmp_path / "nothing").exists()
    assert (new.read_bytes(), new.is_symlink(), new.stat().st_mode & 0o777) == (b"secret", False, 0o600)


def test_a_file_of_history_is_made_anew_beside_its_name(tmp_path: Path) -> None:
    """The name of its temporary file is predictable."""
    ours = tmp_path / "ours"
    ours.write_bytes(b"ours")
    (tmp_path / f"out.{os.getpid()}.part").symlink_to(ours)
    with HistoryFileWriter(tmp_path / "out", KIND, cluster="main"):
        pass
    assert ours.read_bytes() == b"ours"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600 and not (tmp_path / "out").is_symlink()


WRITER = """
import sys
from onyxq.history.backup.file import KIND
from onyxq.history.file_format import HistoryFileWriter
writer = HistoryFileWriter(sys.argv[1], KIND, cluster="main")
print("begun", flush=True)
sys.stdin.read()
"""


def test_the_next_writer_removes_what_a_dead_process_began(tmp_path: Path) -> None:
    """The file of a process that still writes stays, and so does a file of another kind."""
    out, theirs = tmp_path / "out", tmp_path / "out.1.part"
    theirs.write_bytes(b"theirs")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "begun\n"
        began = tmp_path / f"out.{other.pid}.part"
        with HistoryFileWriter(out, KIND, cluster="main"):
            assert began.exists()
        other.kill()
    assert began.exists()
    with HistoryFileWriter(out, KIND, cluster="main"):
        assert not began.exists()
    assert sorted(tmp_path.iterdir()) == [out, theirs]


def test_a_complete_file_stays_if_its_directory_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has replaced the old file already, and it can be read."""
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    out = tmp_path / "out"
    out.write_bytes(b"old")
    writer = HistoryFileWriter(out, KIND, cluster="main")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(BadRequest, match="out is complete, but a crash may remove it, .*: Input/output error"):
        writer.finish()
    assert list(tmp_path.iterdir()) == [out] and open_file(out, KIND).cluster == "main"


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    """The linked file would be overwritten with a number."""
    ours = tmp_path / "ours"
    ours.write_bytes(b"ours")
    (tmp_path / "lock").symlink_to(ours)
    with pytest.raises(OSError, match="symbolic links"):
        lock_file(tmp_path / "lock", what="it", hint="")
    assert ours.read_bytes() == b"ours"


def test_a_directory_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    """A directory that is already closed stays unchanged."""
    for mode in (0o777, 0o750, 0o700, 0o500):
        tmp_path.chmod(mode)
        close_to_others(tmp_path)
        assert tmp_path.stat().st_mode & 0o777 == (mode if mode & 0o077 == 0 else 0o700)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("node", ["../outside", "/outside", "..", ".", "", "a/b", "a\0b", "a\nb", "x" * 65])
def test_a_node_of_a_backup_with_a_strange_id_is_refused(tmp_path: Path, node: str) -> None:
    """Its id becomes the name of a directory."""
    directories = Directories(lambda number, name: tmp_path / "inside" / name)

    async def make() -> None:
        with pytest.raises(Corrupt, match="node with the id"):
            async with directories.new_stores(["0123456789ab", node]):
                pytest.fail("it was taken")

    trio.run(make)
    assert not list(tmp_path.iterdir())
