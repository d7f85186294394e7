"""A disk that fails for one process on request: see ``failing_disk.c``, which is compiled and preloaded."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

WRITES, META_WRITES, SYNCS = 1, 2, 3
"""What fails: any write of the file, a write of one of its first two pages, or a sync."""
ALWAYS = 1 << 40
_NUMBERS = struct.Struct("=8q")
_SOURCE = Path(__file__).with_suffix(".c")


class FailingDisk:
    """The control file of one process; ``surroundings`` are environment variables for it."""

    def __init__(self, control: Path, library: Path) -> None:
        if not control.exists():
            control.write_bytes(bytes(_NUMBERS.size))
        with control.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), _NUMBERS.size)
        self.surroundings = {"LD_PRELOAD": str(library), "FAILING_DISK": str(control)}

    @classmethod
    def attached(cls) -> FailingDisk:
        """Return the disk of this process, which has the library preloaded."""
        return cls(Path(os.environ["FAILING_DISK"]), Path(os.environ["LD_PRELOAD"]))

    def fail(self, kind: int, *, times: int = 1, error: int = errno.EIO) -> None:
        """Let the next calls of a kind fail."""
        self._set(kind, times, error, 0, 0)

    def spoil(self, path: Path, page: int) -> None:
        """Make a page of a file unreadable: a memory map then kills the process, a read gives EIO."""
        self._set(0, 0, 0, page * mmap.PAGESIZE, path.stat().st_ino)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._set(0, 0, 0, 0, 0)

    @property
    def hits(self) -> int:
        """Return the number of failures since the last change."""
        return int(_NUMBERS.unpack(self._numbers[:])[5])

    def _set(self, *numbers: int) -> None:
        self._numbers[:] = _NUMBERS.pack(*numbers, 0, 0, 0)


def compile_library(directory: Path) -> Path:
    """Return the compiled library; skip without a C compiler, except under ``CI``, where it fails."""
    library = directory / "failing_disk.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("there is no C compiler")
        pytest.skip("there is no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
    return library
