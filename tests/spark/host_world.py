"""A host process as its peer uses it: orders go in, events come out."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Job
from onyxq.spark.session import descendants

PATIENCE_S = 120.0
"""Longest wait for a host, on a busy machine."""
ROOT = Path(__file__).resolve().parents[2]


class HostProcess:
    """A host that was started; made by `host_process`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def event(self, *kinds: str, job: str | None = None) -> dict[str, Any]:
        """Return the next event of these kinds (of a job, if named); earlier events are in ``seen``."""
        while True:
            found = self._events.get(timeout=PATIENCE_S)
            assert found is not None, f"the host ended; it said {self.seen[-3:]}"
            self.seen.append(found)
            if found["event"] in kinds and job in (None, found.get("job")):
                return found

    def quiet(self, for_s: float) -> bool:
        """Return whether it sends nothing for that long; it must not end."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                assert self._events.get(timeout=for_s) is not None
            except queue.Empty:
                return True
        return False

    def start(self, job: Job, *, version: int = 1) -> None:
        """Order the start of a job without commits."""
        body = base64.b64encode(encode(job)).decode()
        self.order("start", job.id, version, body=body, slots=1, batch=-1, offsets="", sealed=[])

    def order(self, do: str, job: str, version: int, **more: Any) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "job": job, "version": version, **more}) + "\n")
        self.process.stdin.flush()

    def family(self) -> list[int]:
        """Return the process ids of all that it has started."""
        return descendants(self.process.pid)

    def close(self) -> int:
        """End it as when its peer ends; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


def on_small_disk(folder: Path, size: str) -> list[str]:
    """Return the start of a command that then sees a full disk of that size at a folder.

    A file ``full`` uses all of it. No other process sees the disk, and it is removed with the command's
    processes.
    """
    whole = f"mount -t tmpfs -o size={size} tmpfs '{folder}' || exit 9; head -c 1G /dev/zero > '{folder}/full' 2>&-"
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *mapped, "sh", "-c", f'{whole}; exec "$@"', "sh"]


@contextmanager
def host_process(
    work: Path, *, environment: Mapping[str, str] | None = None, inside: Sequence[str] = (), **asked: Any
) -> Iterator[HostProcess]:
    """Run a host; kill it after the test if it has not ended. ``inside``: a command that runs it."""
    plan = json.dumps(
        {"work": str(work), "slots": 2, "archive": False, "quick_start": True, "modules": [str(ROOT)], **asked}
    )
    with (
        open(work / "host.log", "ab") as log,
        subprocess.Popen(
            [*inside, sys.executable, "-m", "onyxq.spark.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        ) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(plan + "\n")
        process.stdin.flush()
        host = HostProcess(process)
        try:
            yield host
        finally:
            left = descendants(process.pid)
            process.kill()
            for pid in left:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            host.reader.join()


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], within_s: float) -> bool:
    """Return whether all of them end in time."""
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


MODULE = '''"""A function that a job brings as a Python file."""

import os


def packed(segment):
    """Return the segment, and whether the job's Python environment runs it."""
    return {**segment, "packed": os.environ.get("PACKED", "no")}
'''


def brought(folder: Path) -> dict[str, Any]:
    """Return fields of `HostSettings` for a Python file with the function ``brought_words:packed``, and an environment.

    The environment is a small one: it runs this Python, and sets a variable.
    """
    module, program, packed = folder / "brought_words.py", folder / "python", folder / "environment.tar.gz"
    module.write_text(MODULE)
    program.write_text(f'#!/bin/sh\nexport PACKED=yes\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(program, "bin/python")
    return {"py_files": [str(module)], "environment": str(packed)}
