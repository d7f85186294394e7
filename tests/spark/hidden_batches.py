"""Batches of an output other than a queue, hidden in its folder as a job's driver leaves them."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from onyxq.jobs.values import pack
from onyxq.spark.files.file_sink import publish, stage
from onyxq.spark.files.staging import Folder, Staging


def staged(out: Folder, number: int, found: list[Any], mark: str = "m") -> None:
    """Write and note a batch, as before its commit."""
    task = Staging({"out": out}, job="j", batch=number, part=0)
    for row in found:
        task.add("out", pack(row))
    stage([out], task.finish(), job="j", batch=number, mark=mark)


def show(out: Folder, number: int, mark: str = "m") -> None:
    """Publish a batch, as the next driver does at its start, before it knows the columns."""
    publish([evolve(out, schema="")], job="j", batch=number, mark=mark, version=7)
