"""Functions of the user as outputs, called with the rows of each committed batch, at least once.

The log commits a batch before the call. So a repeated call has the same rows and the same key.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow

from onyxq.jobs.predicates import Pickled, Ref
from onyxq.spark.failures import of_task
from onyxq.spark.files.staging import Folder
from onyxq.spark.functions import resolve
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
    said = json.loads(folder.fn)
    ref = said if isinstance(said, str) else Pickled(said["named"], base64.b64decode(said["pickled"]))
    call = resolve(ref, f"output {folder.name}: foreach_batch")
    facts = {"job": batch.job, "version": batch.version, "task": batch.output, "batch": batch.number}
    try:
        call(_rows(folder, files), {**facts, "key": f"{batch.writer}/{batch.number}"})
    except Exception as error:
        raise of_task(error, task=folder.name, segment=None, restart=True) from error


def _rows(folder: Folder, files: Files) -> Any:
    """Return an Arrow table if the output has columns, otherwise a list of segments."""
    if "schema" in folder.options:
        return pyarrow.Table.from_batches(files.batches(), files.schema())
    return list(files.packed())
