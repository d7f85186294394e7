"""Parts that the examples share: a cluster on one machine that hosts Spark, and checks of results.

`local_cluster` starts the processes that ``onyxq peer start --spark`` would start, and always ends
them: one peer on the embedded log, and the process that runs Spark.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from onyxq import Job, api
from onyxq.client import JobOutcome
from onyxq.errors import OnyxqError

SLOTS = 2
JOB_S_MAX = 600
"""Longest time for starting Spark and running the job, also on a busy machine."""
END_S_MAX = 20
SHOWN = 5


class Failed(Exception):
    """The example failed; the text says how."""


@frozen
class Cluster:
    """A running cluster."""

    address: str
    """``HOST:PORT`` for clients."""
    data: Path
    """Data directory of its peer."""

    def host(self) -> int:
        """Return the process id of the peer's Spark."""
        return int(json.loads((self.data / "spark" / "host.pid").read_text())["pid"])


@contextmanager
def folder() -> Iterator[Path]:
    """Create a temporary folder, which is deleted at the end."""
    path = Path(tempfile.mkdtemp(prefix="onyxq-example-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def local_cluster(data: Path, *options: str) -> Iterator[Cluster]:
    """Start one peer that hosts Spark, on free ports; raises `Failed` if it does not start.

    It also gets the arguments of the example: ``word_count.py --spark-master spark://HOST:PORT``.
    """
    data.mkdir(parents=True)
    command = [sys.executable, "-m", "onyxq", "peer", "start", "--json", "--data", str(data)]
    command += [
        "--listen",
        "127.0.0.1:0",
        "--http",
        "off",
        "--spark",
        "--allow-local-code",
        "--slots",
        str(SLOTS),
        *options,
        *sys.argv[1:],
    ]
    # In a session of its own it does not receive Ctrl-C; it is ended when this block is left.
    with (
        open(data / "peer.log", "w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as peer,
    ):
        try:
            assert peer.stdout is not None
            ready = peer.stdout.readline()
            if not ready:
                raise Failed(f"the peer did not start:\n{(data / 'peer.log').read_text().strip()}")
            yield Cluster(json.loads(ready)["listen"], data)
        finally:
            peer.terminate()
            try:
                peer.wait(END_S_MAX)
            except subprocess.TimeoutExpired:
                peer.kill()


def run(job: Job, cluster: Cluster, *sealed: str) -> None:
    """Submit a job, seal some of its inputs, and wait for its end; raises `Failed` if it did not complete."""
    print(f"job {job.id}: submitted to {cluster.address}, where Spark is started for it")
    began = time.monotonic()
    name = api.submit(job, cluster.address)
    for source in sealed:
        api.seal(name, source, cluster.address)
    outcome = completed(api.wait(name, cluster.address, timeout=JOB_S_MAX))
    took = f"{time.monotonic() - began:.1f} s, the start of Spark included"
    print(f"job {job.id}: completed with batch {outcome.batch} after {took}")


def completed(outcome: JobOutcome) -> JobOutcome:
    """Return the outcome of a job that completed; otherwise raise `Failed` with its error."""
    if not outcome.completed:
        raise Failed(f"job {outcome.id} is {outcome.state}: {outcome.error}")
    return outcome


def check(what: str, found: Iterable[Any], wanted: Iterable[Any]) -> None:
    """Compare rows, in any order, with those of a plain computation; raises `Failed` if they differ."""
    got, should = Counter(found), Counter(wanted)
    if not should:
        raise Failed(f"{what}: there is nothing to compare with")
    missing, extra = should - got, got - should
    if missing or extra:
        told = "\n".join(f"  {sign} {row}" for sign, rows in (("-", missing), ("+", extra)) for row in [*rows][:SHOWN])
        raise Failed(f"{what}: {missing.total():,} rows are missing (-), {extra.total():,} are too many (+)\n{told}")
    print(f"exact: {what}, {should.total():,} rows")


def check_number(what: str, found: int, wanted: int) -> None:
    """Compare a number with that of a plain computation; raises `Failed`."""
    if found != wanted:
        raise Failed(f"{what}: {found:,} instead of {wanted:,}")
    print(f"exact: {what}, {found:,}")


def json_rows(path: Path) -> list[Any]:
    """Return the segments in a folder that an output of the format ``json`` has written."""
    return [json.loads(line) for file in sorted(path.glob("*.json")) for line in file.read_text("utf-8").splitlines()]


def write_json(path: Path, rows: Iterable[Any]) -> None:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def library(package: str = "") -> list[Path]:
    """Return the sources of Python's standard library, or of one package of it."""
    return sorted((Path(sysconfig.get_path("stdlib")) / package).glob("*.py"))


def main(example: Callable[[], None]) -> None:
    """Run an example; return 0 if its results are right, or 1 after printing the reason."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    try:
        example()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (Failed, OnyxqError) as error:
        sys.exit(f"failed: {error}")
    print(f"all of it in {time.monotonic() - began:.1f} s")


__all__ = [
    "Cluster",
    "Failed",
    "check",
    "check_number",
    "completed",
    "folder",
    "json_rows",
    "library",
    "local_cluster",
    "main",
    "run",
    "write_json",
]
