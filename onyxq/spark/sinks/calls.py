"""Functions of the user as outputs, called with the rows of each committed batch, at least once.

The log commits a batch before the call. So a repeated call has the same rows and the same key.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow

from onyxq.jobs.predicates import Pickled, Ref
from onyxq.spark.failures import of_task
from onyxq.spark.files.staging import Folder
from onyxq.spark.functions import resolve
from onyxq.spark.sinks.frame_calls import ask
from onyxq.spark.sinks.tables import Batch, Files


def reference(ref: Ref) -> str:
    """Return a function of a decoded job in the form of `Folder.fn`."""
    if isinstance(ref, Pickled):
        return json.dumps({"named": ref.named, "pickled": base64.b64encode(ref.pickled).decode()})
    return json.dumps(ref)


def check(folder: Folder, schema: Any) -> None:
    """Do nothing: only the process that calls the function imports it."""


def write(folder: Folder, files: Files, batch: Batch) -> None:
    """Call the function. If it raises, raise `TaskFailed`, after which the job is restarted."""
    facts = {"job": batch.job, "version": batch.version, "task": batch.output, "batch": batch.number}
    facts |= {"key": f"{batch.writer}/{batch.number}"}
    if folder.takes_frame:
        ask(folder, files.paths, {"fn": folder.fn, "facts": facts})
    else:
        call(folder.fn, lambda: _rows(folder, files), facts)


def call_with_frame(frame: Any, request: Mapping[str, Any]) -> None:
    """Call the function of a request (`onyxq.spark.sinks.frame_calls`) with a DataFrame."""
    call(request["fn"], lambda: frame, request["facts"])


def call(fn: str, rows: Callable[[], Any], facts: Mapping[str, Any]) -> None:
    """Call a function with the rows of a batch; raises `TaskFailed` with what it raised."""
    said, task = json.loads(fn), facts["task"]
    ref = said if isinstance(said, str) else Pickled(said["named"], base64.b64decode(said["pickled"]))
    called = resolve(ref, f"output {task}: foreach_batch")
    try:
        called(rows(), dict(facts))
    except Exception as error:
        raise of_task(error, task=task, segment=None, restart=True) from error


def _rows(folder: Folder, files: Files) -> Any:
    """Return an Arrow table if the output has columns, otherwise a list of segments."""
    if "schema" in folder.options:
        return pyarrow.Table.from_batches(files.batches(), files.schema())
    return list(files.packed())
