"""Only the owner can read what a peer and the copying commands write, for any umask."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onyxq import Client

pytestmark = pytest.mark.long


ONYXQ = (sys.executable, "-m", "onyxq")
PATIENCE_S = 60.0


@contextmanager
def peer(where: Path) -> Iterator[str]:
    """Run a peer whose directories exist already, open to all users; return its address."""
    for name in ("data", "archive", "records"):
        (where / name).mkdir(mode=0o755)
        (where / name).chmod(0o755)
    command = [*ONYXQ, "peer", "start", "--json", "--listen", "127.0.0.1:0", "--http", "off", "--gc-records", "10"]
    command += ["--data", str(where / "data"), "--archive", str(where / "archive")]
    command += ["--record-archive", str(where / "records")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, umask=0o000) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["listen"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def open_to_others(where: Path) -> list[str]:
    """Return every file that other users may read or change, and every directory that they may list."""
    found = [path for path in where.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
    return [f"{path.relative_to(where)} {stat.filemode(path.stat().st_mode)}" for path in found]


def test_nobody_else_reads_what_a_peer_writes(tmp_path: Path) -> None:
    """This holds for its store, log and archives, and for backups, dumps and tables of them."""
    with peer(tmp_path) as address:
        with Client(address) as client:
            client.enqueue_many("q", [b"secret"] * 100)
            for claim in client.claim(["q"], 100, wait_ms=20_000, worker="w"):
                client.complete(claim)
            client.call("gc", {})
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
        assert open_to_others(tmp_path / "data") == []
        environment = {**os.environ, "ONYXQ_CONNECT": address}
        for words in (
            ["cluster", "backup", str(tmp_path / "out.backup")],
            ["log", "dump", str(tmp_path / "out.dump")],
            ["archive", "log", str(tmp_path / "tables")],
        ):
            subprocess.run([*ONYXQ, *words], env=environment, umask=0o000, check=True, timeout=PATIENCE_S)
    for name in ("archive", "records"):
        assert list((tmp_path / name).rglob("*"))
        assert open_to_others(tmp_path / name) == []
        (tmp_path / name).chmod(0o700)
    assert open_to_others(tmp_path) == []
