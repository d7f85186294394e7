"""Measures whole jobs, from files through one task to files or a table, beside plain Spark; a part of `bench.spark`.

Both read the same Parquet files in the same batches and write the same rows. Plain Spark does the work by a query that
stays in the virtual machine, and again by the Python function that the job has. Each run has processes of its own: a
peer with its Spark host, or a Python process with Spark (`bench.spark_plain`). Rates are those of all batches but the
first.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bench.common import medians, progress
from bench.drive import started
from bench.onyxq_system import ROOT, OnyxqEmbedded1
from bench.spark_plain import FILES_PER_BATCH, RESULT, SCHEMA, Batch, peak_mib, rate
from onyxq import Client, Frame, Function, Input, Job, Output, Sql

FILES = 40
TAX = 1.2
LEAST = 1.0
"""Smaller amounts are left out: one row in a hundred."""
SMALL_FILES, SMALL_ROWS = 40, 10
"""Files, each a batch of its own, and their rows, for the time that a batch takes at least."""
WARM_UP = 10
"""Small batches that do not count."""
SLOTS = 2
JOB_S_MAX = 600
QUERY = f"select id, user, amount * {TAX} as total from rows where amount >= {LEAST}"
FUNCTION = "bench.spark_jobs:taxed"


def taxed(segment: dict[str, Any]) -> dict[str, Any] | None:
    """Do the work on one row, as a user's function."""
    if segment["amount"] < LEAST:
        return None
    return {"id": segment["id"], "user": segment["user"], "total": segment["amount"] * TAX}


def taxed_frame(rows: Any) -> Any:
    """Do the work on a DataFrame."""
    return rows.where(rows.amount >= LEAST).select("id", "user", (rows.amount * TAX).alias("total"))


TASKS: Mapping[str, Callable[[], Any]] = {
    "frame": lambda: Frame("work", "bench.spark_jobs:taxed_frame"),
    "sql": lambda: Sql("work", QUERY),
    "function": lambda: Function("work", FUNCTION),
}
"""Kind of task -> the task that does the work."""
PLAIN = "plain_spark"
PLAIN_WORK = {PLAIN: QUERY, "plain_spark_function": FUNCTION}
"""Measurement of plain Spark -> what does the work there (`bench.spark_plain`)."""


class SparkPeer(OnyxqEmbedded1):
    """One peer with a Spark host."""

    name = "onyxq-spark"
    options: ClassVar[Sequence[str]] = ("--spark", "--allow-local-code", "--slots", str(SLOTS))


class Case(NamedTuple):
    """One measurement: what does the work, and what it writes."""

    task: str
    output: str
    source: Path
    files_per_batch: int
    rows_left: int
    """Rows that must be in the output."""


def jobs(rows: int, runs: int, directory: Path) -> dict[str, Any]:
    """Measure rows per second, the time of a small batch, start-up and memory; medians of ``runs`` rounds."""
    large, small = directory / "large", directory / "small"
    left = write_files(large, FILES, rows // FILES)
    small_left = write_files(small, SMALL_FILES, SMALL_ROWS)
    cases = {
        f"{task}_to_{output}": Case(task, output, large, FILES_PER_BATCH, left)
        for output in ("parquet", "delta")
        for task in (*PLAIN_WORK, *TASKS)
    } | {f"{task}_small_batches": Case(task, "parquet", small, 1, small_left) for task in (PLAIN, "sql", "function")}
    rounds = []
    for number in range(runs):
        found = {}
        for name, case in cases.items():
            progress(f"round {number + 1}: {name}")
            found[name] = measure(case, directory / f"{name}-{number}")
        rounds.append(found)
    return {"rows": rows, "files": FILES, "runs": runs, "slots": SLOTS, **medians(rounds)}


def write_files(folder: Path, files: int, rows: int) -> int:
    """Write the input; return how many rows the work leaves."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(7)
    left = 0
    for number in range(files):
        amounts = noise.uniform(0, 100 * LEAST, rows)
        left += int((amounts >= LEAST).sum())
        ids = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
        users = pa.array([f"user-{one % 10_000}" for one in ids.tolist()])
        pq.write_table(pa.table({"id": ids, "user": users, "amount": amounts}), folder / f"{number:03}.parquet")
    return left


def measure(case: Case, directory: Path) -> dict[str, Any]:
    """Run one case in fresh processes; raise `AssertionError` if its output has another number of rows."""
    directory.mkdir()
    out = directory / "out"
    batches, start_s, memory_mib = (_plain if case.task in PLAIN_WORK else _job)(case, directory, out)
    found = _count(out, case.output)
    if found != case.rows_left:
        raise AssertionError(f"{case.task} to {case.output}: {found} rows are there instead of {case.rows_left}")
    shown: dict[str, Any] = {"start_s": round(start_s, 2), "memory_mib": memory_mib}
    if case.files_per_batch == 1:
        return {"batch_p50_ms": statistics.median(one.duration_ms for one in batches[WARM_UP:]), **shown}
    return {"rows_per_s": rate(batches), **shown}


def _job(case: Case, directory: Path, out: Path) -> tuple[list[Batch], float, int]:
    peer = SparkPeer()
    job = Job(
        id="measured",
        workflow=[("rows", "work"), ("work", "out")],
        catalog=[
            Input(
                "rows",
                format="parquet",
                path=str(case.source),
                schema=SCHEMA,
                options={"maxFilesPerTrigger": str(case.files_per_batch)},
            ),
            TASKS[case.task](),
            Output("out", format=case.output, path=str(out), options={"schema": RESULT}),
        ],
    )
    with started(peer, directory), Client(peer.addresses[0]) as client:
        began_s = time.time()
        client.submit_job(job)
        outcome = client.wait_job("measured", JOB_S_MAX * 1000)
        if not outcome.completed:
            raise AssertionError(f"the job is {outcome.state}: {outcome.error}")
        said = client.job("measured")["progress"]["batches"]
        batches = [Batch(one["at_ms"], one["duration_ms"], one["rows"]) for one in said if one["rows"]]
        return batches, batches[0].at_ms / 1000 - began_s, sum(peak_mib(pid) for pid in peer.pids())


def _plain(case: Case, directory: Path, out: Path) -> tuple[list[Batch], float, int]:
    began_s = time.time()
    options = [str(case.source), str(out), case.output, str(case.files_per_batch), str(directory / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark_plain", str(SLOTS), PLAIN_WORK[case.task], *options],
        cwd=ROOT,
        # Its workers import the function, with the packages of this process.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        check=True,
        stdout=subprocess.PIPE,
        timeout=JOB_S_MAX,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    batches = [Batch(*one) for one in said["batches"]]
    return batches, batches[0].at_ms / 1000 - began_s, said["memory_mib"]


def _count(out: Path, kind: str) -> int:
    """Return the rows of an output."""
    if kind == "delta":
        import deltalake

        return int(deltalake.DeltaTable(str(out)).count())
    return int(ds.dataset(out, format="parquet").count_rows())
