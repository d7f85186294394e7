"""Jobs with an input of any kind and some branches of any kind of task, whose functions note their calls."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from attrs import field, frozen

from onyxq.client import Client
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import (
    Aggregation,
    BatchFunction,
    Frame,
    Function,
    Input,
    Job,
    Join,
    Output,
    Reduce,
    Sql,
    Trigger,
    Window,
)
from onyxq.spark import java, progress
from onyxq.spark.plan.compile import Setting, compiled
from tests.spark.job_world import HERE, written
from tests.spark.tasks import noted_fold

KINDS = ("queue", "json", "csv", "parquet", "orc", "text", "xml", "binaryFile", "rate-micro-batch", "rate")
"""Kinds of inputs that need no further jars."""
TASKS = ("Function", "Reduce", "Join", "Frame", "Sql", "BatchFunction")
FRAMES = ("Frame", "Sql", "BatchFunction")
END_S = 120
_NUMBERS = {
    "text": "cast(value as bigint)",
    "binaryFile": "cast(cast(content as string) as bigint)",
    "rate": "value",
    "rate-micro-batch": "value",
}
"""Kind of an input -> the number of its row in SQL; default: its column ``n``."""
_names = count(1)


def filled(spark: Any, client: Client, kind: str, folder: Path, numbers: range, *, columns: bool = False) -> Input:
    """Make an input with a row for each of these numbers; ``columns``: a frame task reads it."""
    name, schema = f"in{numbers.start}", "n bigint"
    if kind == "queue":
        queue = f"numbers-{next(_names)}"
        client.enqueue_many(queue, [b'{"n": %d}' % number for number in numbers], format="json")
        return Input(name, queue=queue, schema=schema if columns else None)
    if kind == "rate":
        return Input(name, format=kind, options={"rowsPerSecond": "20", "numPartitions": "2"})
    if kind == "rate-micro-batch":
        return Input(name, format=kind, options={"rowsPerBatch": str(len(numbers)), "numPartitions": "2"}, bounded=True)
    source, options = folder / name, {"rowTag": "row"} if kind == "xml" else {}
    if kind == "binaryFile":
        source.mkdir()
        for number in numbers:
            (source / f"{number}.bin").write_bytes(b"%d" % number)
    else:
        value = "cast(id as string) as value" if kind == "text" else "id as n"
        frame = spark.range(numbers.start, numbers.stop, 1, 2).selectExpr(value)
        frame.write.format(kind).options(**options).save(str(source))
    given = schema if kind in ("csv", "json", "xml") else None
    return Input(name, format=kind, path=str(source), options=options, schema=given)


def branch(task: str, name: str, entry: str, notes: str, *, kind: str) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the tasks and the edges of a branch; the last task leads to its output.

    ``kind``: of the input whose columns a frame task reads; empty if it gets segments with the field ``n``.
    """

    def of(name: str) -> dict[str, str]:
        return {"folder": notes, "task": name}

    schema: dict[str, Any] = {} if kind else {"schema": "n bigint"}
    if task == "Function":
        return [Function(name, f"{HERE}:noted_number", of(name))], [(entry, name)]
    if task == "Reduce":
        return [Reduce(name)], [(entry, name)]
    if task == "Join":
        sides = [f"{name}-left", f"{name}-right"]
        functions = [Function(side, f"{HERE}:noted_number", of(side)) for side in sides]
        joined = Join(name, left=sides[0], right=sides[1], on="n", keep_all=True)
        return [*functions, joined], [edge for side in sides for edge in ((entry, side), (side, name))]
    if task == "Frame":
        return [Frame(name, f"{HERE}:noted_frame", of(name), frames={"rows": entry}, **schema)], [(entry, name)]
    if task == "BatchFunction":
        return [BatchFunction(name, f"{HERE}:noted_batch", of(name), returns="n bigint", **schema)], [(entry, name)]
    after, number = f"{name}-after", _NUMBERS.get(kind, "n")
    query = Sql(name, f"select {number} as n from `{entry}`", **schema)
    return [query, Function(after, f"{HERE}:noted_number", of(after))], [(entry, name), (name, after)]


def window(name: str, notes: str) -> Window:
    """Return a window that counts all segments of a task."""

    def fold(state: int, segment: Any) -> int:
        return noted_fold(notes, name, state, segment)

    return Window(name, name, aggregation=Aggregation(f"{HERE}:nothing", fold, f"{HERE}:added"))


def job_of(task: str, branches: int, source: Input, kind: str, folder: Path, *, before: bool = False) -> Job:
    """Return a job of an input and some branches of a kind of task, each with an output in a folder of its name.

    ``before``: whether a function ``f`` comes before all branches.
    """
    notes = folder / "notes"
    notes.mkdir()
    catalog: list[Any] = [source]
    edges: list[tuple[str, str]] = []
    entry = source.name
    if before:
        catalog.append(Function("f", f"{HERE}:noted_number", {"folder": str(notes), "task": "f"}))
        edges.append((source.name, "f"))
        entry, kind = "f", ""
    names = [f"t{number}" for number in range(branches)]
    for name in names:
        tasks, more = branch(task, name, entry, str(notes), kind=kind)
        output = Output(f"{name}-out", format="json", path=str(folder / name))
        catalog += [*tasks, output]
        edges += [*more, (tasks[-1].name, output.name)]
    reduces = names if task == "Reduce" else []
    job = Job(
        id=f"job-{next(_names)}",
        workflow=edges,
        catalog=catalog,
        windows=[window(name, str(notes)) for name in reduces],
        triggers=[Trigger(name, on="batch") for name in reduces],
        key_groups=2,
    )
    check(job)
    return job


@frozen
class Started:
    """A job's query that runs, or has ended."""

    job: Job
    query: Any
    uses: list[progress.Use] = field(repr=False)
    """The sources of its plan."""

    def reports(self) -> list[dict[str, Any]]:
        """Return Spark's report of each batch."""
        return [json.loads(one) for one in java.reports(self.query)]

    def rows(self) -> int:
        """Return how many rows of inputs Spark has counted, each time that it read them."""
        sources = [pair for said in self.reports() for pair in zip(said["sources"], self.uses, strict=True)]
        return sum(source["numInputRows"] for source, use in sources if use.name)

    def inputs(self) -> Counter[str]:
        """Return how many rows of each input the job's progress shows."""
        found: Counter[str] = Counter()
        for said in self.reports():
            found.update(progress.report(said, self.uses)["inputs"])
        return found

    def finish(self, rows: int) -> None:
        """Wait until it has ended; stop it, if it does not end, once it has read that many rows."""
        deadline = time.monotonic() + END_S
        while not self.query.awaitTermination(0.05):
            assert time.monotonic() < deadline, f"{self.job.id} was not done in time: {self.reports()[-1:]}"
            if self.rows() >= rows and not all(task.bounded for task in self.job.catalog if isinstance(task, Input)):
                self.query.stop()


def started(spark: Any, job: Job, folder: Path, *, version: int = 1, connect: str | None = None) -> Started:
    """Start a job's query; ``connect``: the peer, for queues."""
    body = encode(job)
    setting = Setting(version=version, slots=2, checkpoint=str(folder / "checkpoint"), connect=connect)
    writer = compiled(spark, decode(body), body, setting)
    return Started(job, writer.start(), progress.uses_of(java.frame_of(writer)))


Call = tuple[str, int, int, str]
"""The task, the number, the batch, and the attempt at the batch."""


def calls(folder: Path, *, last: int | None = None) -> Counter[Call]:
    """Return the noted calls of batches up to the last one that counts."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text().splitlines()]
    found = [(task, int(number), int(batch), attempt) for task, number, batch, attempt in lines]
    return Counter(one for one in found if last is None or one[2] <= last)


def check_calls(found: Counter[Call], numbers: Sequence[int], ways: dict[str, int]) -> None:
    """Assert that there was one attempt, and that each task was called once on each of its ways for each number."""
    assert len({attempt for *_, attempt in found}) == 1
    called = Counter({(task, number): times for (task, number, _, _), times in found.items()})
    assert called == {(task, number): times for task, times in ways.items() for number in numbers}
    assert len(called) == len(found), "a number is in one batch"


def noting(task: str, branches: int) -> list[str]:
    """Return the tasks that note their calls, of all branches."""
    names = [f"t{number}" for number in range(branches)]
    ends = {"Join": ("-left", "-right"), "Sql": ("-after",)}.get(task, ("",))
    return [f"{name}{end}" for name in names for end in ends]


def check_outputs(task: str, branches: int, folder: Path, numbers: range) -> None:
    """Assert that the output of each branch has each of these numbers once, or their count.

    A job that was stopped may have written more than it has reported.
    """
    for place in range(branches):
        found = written(folder / f"t{place}")
        if task == "Reduce":
            assert len(numbers) in {one["value"] for one in found}
        elif task == "Join":
            pairs = [(one["left"]["n"], one["right"]["n"]) for one in found]
            assert Counter(pair for pair in pairs if pair[0] in numbers) == Counter((n, n) for n in numbers)
        else:
            assert Counter(one["n"] for one in found if one["n"] in numbers) == Counter(numbers)
