"""Measures Spark: archives written, checked and summed up; queues as source and sink; user functions.

An archive of 10,000,000 claims is made with pyarrow, in the layout of peers. Four tasks in five
have one claim, the others two. One task in twenty has an ordering key. ``onyxq.spark.analysis``
checks the archive once as a command would, including the start of Spark, and once more in the same
session. The speed at which peers archive is measured separately, from a store in memory.

Queues of one peer on the embedded log are read and written, and compared with Spark's own rate
source and Parquet sink: rows per second, in batches of 10,000, the first one not counted. User
functions are measured alone, by segments and by Arrow batches. Whole jobs from files to files and
to Delta tables are compared with plain Spark that does the same. Run it from the project's root:
``python -m bench.spark``.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from pyrsistent import pmap

from bench.common import cpu_seconds, emit, machine, progress
from bench.drive import started
from bench.onyxq_system import OnyxqEmbedded1
from bench.options import end_on_signal, guarded
from bench.spark_archive import write_archive
from bench.spark_jobs import jobs
from bench.spark_queues import functions, queues
from onyxq.core import facts
from onyxq.core.facts import Completion, History
from onyxq.core.ids import make_id
from onyxq.core.queue_settings import Queue
from onyxq.core.replica import Replica
from onyxq.history.parquet.bucket import Bucket
from onyxq.history.parquet.writer import write_bucket
from onyxq.spark.analysis.history_check import check
from onyxq.spark.analysis.session import spark_session
from onyxq.spark.analysis.stats import stats
from onyxq.spark.session import machine_of
from onyxq.store.interface import Batch
from onyxq.store.memory import MemoryStore

HOUR_MS = 3_600_000
FROM_MS = 1_795_219_200_000
RUN_TASKS = 500
PAYLOAD_BYTES = 100


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    directory = Path(tempfile.mkdtemp(prefix="onyxq-bench-", dir=options.directory))
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "archive": lambda: _archive(options, directory / "peers"),
        "history": lambda: _history(options, directory / "history"),
        "queues": lambda: _queues(options, directory / "queues"),
        "functions": lambda: _functions(options, directory / "functions"),
        "jobs": lambda: jobs(options.rows, options.runs, directory / "jobs"),
    }
    try:
        doc = {
            "benchmark": "spark",
            "machine": machine(),
            "settings": {"claims": options.claims, "master": options.master, "heap": options.memory},
            **{name: guarded(parts[name]) for name in options.parts.split(",")},
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    emit(doc)


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--parts",
        default="archive,history,queues,functions,jobs",
        help="parts to measure, comma-separated (default all)",
    )
    made.add_argument("--claims", type=int, default=10_000_000)
    made.add_argument("--archived", type=int, default=200_000, help="tasks that a peer archives (default 200000)")
    made.add_argument("--tasks", type=int, default=200_000, help="tasks that are read and written (default 200000)")
    made.add_argument("--segments", type=int, default=1_000_000, help="segments for user functions (default 1000000)")
    made.add_argument("--rows", type=int, default=8_000_000, help="rows of a job's files (default 8000000)")
    made.add_argument("--runs", type=int, default=3, help="measurements of each job (default 3)")
    made.add_argument("--master", default="local[*]")
    made.add_argument("--memory", default="2g", help="heap of Spark (default 2g)")
    made.add_argument("--directory", help="directory of the data (default: the system's temporary directory)")
    return made.parse_args()


# --- archiving ----------------------------------------------------------------------------------


def _archive(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Archive a bucket of completed tasks, in runs, as a peer does before a purge."""
    progress(f"archiving {options.archived} tasks")

    async def measure() -> dict[str, Any]:
        store = MemoryStore()
        rows = []
        for start in range(0, options.archived, RUN_TASKS):
            first = make_id(FROM_MS + start, 3, start // RUN_TASKS, 0)
            token = 10 + start
            payloads = [random.randbytes(PAYLOAD_BYTES) for _ in range(RUN_TASKS)]
            granted = History(token, 0, RUN_TASKS, facts.GRANTED, token, FROM_MS, "worker", 0, 0, "")
            done = Completion(token, RUN_TASKS, facts.COMPLETED, FROM_MS + 50, [b"done"] * RUN_TASKS)
            rows += [
                facts.task_row(first, facts.pack_task({"queue": "q"}, payloads)),
                facts.history_row(first, granted),
                facts.completion_row(first, done),
            ]
        await store.write(Batch(rows=rows))
        replica = Replica(queues=pmap({"q": Queue(archive=True)}))
        bucket = Bucket(partition=3, from_ms=FROM_MS, before_ms=FROM_MS + HOUR_MS)
        began_s = time.perf_counter()
        written = await write_bucket(replica, store, directory, bucket)
        seconds = time.perf_counter() - began_s
        size = sum(file.stat().st_size for file in directory.rglob("*.parquet"))
        return {
            "tasks": written.tasks,
            "claims": written.claims,
            "seconds": round(seconds, 2),
            "tasks_per_s": round(written.tasks / seconds),
            "bytes_per_task": round(size / written.tasks, 1),
        }

    return trio.run(measure)


# --- history ------------------------------------------------------------------------------------


def _history(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    progress(f"writing an archive of {options.claims} claims")
    began_s = time.perf_counter()
    written = write_archive(directory, options.claims, from_ms=FROM_MS)
    found: dict[str, Any] = {
        "tasks": written.tasks,
        "claims": written.claims,
        "files": written.files,
        "archive_mib": round(written.bytes / 2**20, 1),
        "written_with_pyarrow_s": round(time.perf_counter() - began_s, 2),
    }
    progress("checking")
    began_s = time.perf_counter()
    with spark_session(options.master, memory=options.memory) as session:
        found["spark_start_s"] = round(time.perf_counter() - began_s, 2)
        spark = machine_of(session)
        for name in ("check", "check_again"):
            began_s, used_s = time.perf_counter(), cpu_seconds([spark])
            report = check(session, [str(directory)])
            found[f"{name}_s"] = round(time.perf_counter() - began_s, 2)
            found[f"{name}_cpu_s"] = round(cpu_seconds([spark]) - used_s, 2)
            if not report.clean or (report.tasks, report.claims) != (written.tasks, written.claims):
                raise AssertionError(f"the check found something else: {report}")
        found["claims_checked_per_s"] = round(written.claims / found["check_s"])
        progress("summing up")
        began_s = time.perf_counter()
        summed = stats(session, [str(directory)])
        found["stats_s"] = round(time.perf_counter() - began_s, 2)
        if sum(one.claims for one in summed.queues) != written.claims:
            raise AssertionError("the figures do not add up")
        found["machine_peak_mib"] = _peak_mib(spark)
        found["python_peak_mib"] = _peak_mib("self")
    return found


# --- queues and functions -----------------------------------------------------------------------


def _queues(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    system = OnyxqEmbedded1()
    with started(system, options.directory and Path(options.directory)):
        with spark_session(options.master, memory=options.memory) as session:
            return {"tasks": options.tasks, **queues(session, system.addresses[0], options.tasks, directory)}


def _functions(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    with spark_session(options.master, memory=options.memory) as session:
        return functions(session, options.segments, directory)


def _peak_mib(process: int | str) -> int:
    """Return the largest resident memory of a process."""
    for line in Path(f"/proc/{process}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("the kernel does not tell")


if __name__ == "__main__":
    main()
