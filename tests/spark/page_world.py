"""The blocks of Python on the pages about Spark, and a cluster with Spark that runs them."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

import onyxq
from onyxq import Client, Function, Input, Job, Output
from tests.spark.job_world import HERE

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    *("changing-jobs", "dataframes", "from-onyx", "jobs", "outputs", "queues-on-spark", "spark", "spark-clusters"),
    *("sql", "windows"),
)
JOB_MS_MAX = 240_000
"""Longest wait for a job on a busy machine."""
LOOK_S = 0.1
_BLOCK = re.compile(r"^\.\. code-block:: python\n(?:   :caption: (\S+)\n)?\n((?:   .*\n|\n)+)", re.MULTILINE)
VALUE = "value"
"""Name of the value of a block that ends with an expression."""


def blocks() -> dict[str, str]:
    """Return the code of all blocks of Python by page and caption, such as ``jobs/orders.py``."""
    found: dict[str, str] = {}
    for page in PAGES:
        for caption, text in _BLOCK.findall((DOCS / f"{page}.rst").read_text("utf-8")):
            name = f"{page}/{caption}"
            found[name] = found.get(name, "") + textwrap.dedent(text)
    return found


def replaced(code: str, places: Mapping[str, str]) -> str:
    """Return code with other paths and addresses; each of them must be there."""
    for shown, real in places.items():
        assert shown in code, f"the block does not have {shown!r}"
        code = code.replace(shown, real)
    return code


def executed(name: str, places: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a block like a program, and return its names; ``given``: names that the page takes as known.

    If the block ends with an expression, `VALUE` is its value.
    """
    made = {each: getattr(onyxq, each) for each in onyxq.__all__} | dict(given) | {"__name__": "a_page"}
    tree = ast.parse(replaced(blocks()[name], places), name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), made)
    if isinstance(last, ast.Expr):
        made[VALUE] = eval(compile(ast.Expression(last.value), name, "eval"), made)
    return made


def of_output(output: Output, source: Input, fields: Iterable[str], *more: Output) -> Job:
    """Return a job that gives an output of a page some fields of an input's rows."""
    fields = list(fields)
    return Job(
        id=f"of-{output.name}".replace(" ", "-"),
        workflow=[(source.name, "pick"), ("pick", output.name)],
        catalog=[source, Function("pick", f"{HERE}:fields", {"names": fields}), output, *more],
    )


@frozen
class Reader:
    """A reader of a page, with a folder in place of ``/data`` and a peer that hosts Spark."""

    folder: Path
    address: str
    client: Client = field(repr=False)

    def completed(self, job: Job) -> None:
        """Submit a job, seal its inputs, and wait for its end: it must complete."""
        self.client.submit_job(job)
        self.sealed(job)

    def sealed(self, job: Job, name: str = "") -> None:
        """Seal the inputs of a job that runs (under another name), and wait for its end: it must complete."""
        for task in job.catalog:
            if isinstance(task, Input) and not task.bounded:
                self.client.seal_job(name or job.id, task.name)
        outcome = self.client.wait_job(name or job.id, JOB_MS_MAX)
        assert (outcome.state, outcome.error) == ("completed", "")

    def until(self, job: str, condition: Callable[[], Any]) -> None:
        """Wait until something is true, while a job runs."""
        deadline = time.monotonic() + JOB_MS_MAX / 1000
        while not condition():
            found = self.client.job(job)
            assert found["state"] in ("waiting", "running") and time.monotonic() < deadline, found
            time.sleep(LOOK_S)

    def enqueue(self, queue: str, values: Iterable[Any]) -> None:
        """Enqueue values as JSON."""
        self.client.enqueue_many(queue, [json.dumps(value).encode() for value in values], format="json")

    def taken(self, queue: str) -> list[Any]:
        """Claim and complete all tasks of a queue, and return their values."""
        found: list[Any] = []
        while batch := self.client.claim(queue, max=1_000, worker="reader"):
            found += [json.loads(payload) for payload in batch.payloads]
            self.client.complete(batch)
        return found

    def write(self, name: str, rows: Iterable[Any]) -> None:
        """Write a new file of JSON lines into a folder, in one step."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        part = folder / "_part"
        part.write_text("".join(json.dumps(row) + "\n" for row in rows))
        part.rename(folder / f"{len(list(folder.iterdir()))}.json")
