"""A job's query in the test's session, without peer and host: only the checkpoint decides what is read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from pyarrow import parquet

from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.spark.checkpoint import Checkpoints
from onyxq.spark.plan.compile import Setting, compiled

HERE = "tests.spark.tasks"


def run(spark: Any, job: Job, folder: Path, *, version: int = 1, batch: int = -1, recorded: bytes = b"") -> Path:
    """Run a job of bounded inputs to its end, from its checkpoint under ``folder``; return the checkpoint."""
    checkpoints = Checkpoints(str(folder / "checkpoints"))
    at = checkpoints.fit(job, version=version, batch=batch, recorded=recorded)
    body = encode(job)
    query = compiled(spark, decode(body), body, Setting(version=version, slots=2, checkpoint=at, connect=None)).start()
    query.awaitTermination()
    return Path(at)


def lines_job(folder: Path, *functions: Function, **more: Any) -> Job:
    """Return a job from text files under ``folder / "in"`` through functions to JSON under ``folder / "out"``."""
    names = ["in", *(function.name for function in functions), "out"]
    (folder / "in").mkdir(exist_ok=True)
    return Job(
        id="lines",
        workflow=list(zip(names, names[1:], strict=False)),
        catalog=[
            Input("in", format="text", path=str(folder / "in")),
            *functions,
            Output("out", format="json", path=str(folder / "out")),
        ],
        **more,
    )


def written(folder: Path, kind: str = "json") -> list[Any]:
    """Return all segments in a folder of files, without order and without hidden files."""
    found: list[Any] = []
    for file in sorted(folder.glob(f"*.{kind}")):
        if kind == "parquet":
            found += parquet.read_table(file).to_pylist()
        elif kind == "json":
            found += [json.loads(line) for line in file.read_text().splitlines()]
        elif kind == "csv":
            found += list(csv.reader(file.read_text().splitlines()))
        else:
            found += file.read_text().splitlines()
    return found
