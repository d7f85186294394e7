"""Savepoints of the jobs of a host: copies of checkpoints that outlive their jobs, and jobs that begin from them.

The log decides which savepoints exist. A host asks its peer once a second which ones its jobs must have. It copies the
files of the last batch that is done to a folder of their own, while the query runs, and reports the folder to the peer.
Only then the savepoint is complete. A folder whose savepoint the log does not have, or has at another place, is
deleted: its name has the position of the savepoint's entry, so a host that knows the log up to there can tell. Clusters
that share a place have folders of their own in it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import evolve, frozen
from pyarrow import fs

from onyxq.core.errors import Conflict, Incomplete, OnyxqError, Superseded
from onyxq.jobs.model import Job
from onyxq.spark.checkpoint import (
    SOURCES_BYTES_MAX,
    Checkpoints,
    inputs_in,
    is_whole,
    last_done,
    recorded,
    save,
)
from onyxq.spark.places import exists, located
from onyxq.spark.plan import end_of_input
from onyxq.spark.state_copy import Resumed

LOOK_S = 1.0
"""Pause between two questions which savepoints are to be made, in seconds."""
TIMEOUT_MS = 10_000
WHY_CHARS_MAX = 2_000
_TRIES = 3

log = logging.getLogger(__name__)


@frozen
class Source:
    """The checkpoint of a job that runs."""

    job: Job
    version: int
    folder: str
    inputs: list[str]
    """Names of the offsets, in their order."""


class Savepoints:
    """Makes the savepoints of a host's jobs, and deletes the files of those that are gone.

    ``sources`` returns the checkpoints of the jobs that run now. ``lasting``: whether the place of jobs without a
    ``checkpoint`` of their own outlives this process.
    """

    def __init__(
        self,
        connect: str,
        checkpoints: Checkpoints,
        sources: Callable[[], Collection[Source]],
        *,
        lasting: bool = True,
    ) -> None:
        self._lasting = lasting
        self._connect = connect
        self._checkpoints = checkpoints
        self._sources = sources
        self._copied: dict[tuple[str, int, int], dict[str, Any]] = {}
        """Name, position and version of a savepoint -> the report of its copy, until the log has it."""
        self._swept: tuple[set[str], set[str]] | None = None
        """The folders that were searched, and the places that stay, at the last deletion."""

    def run(self, stopped: threading.Event) -> None:
        """Work until it is stopped; errors of the cluster and of disks are logged, and the work is tried again."""
        while not stopped.wait(LOOK_S):
            try:
                self.look()
            except OnyxqError as error:
                log.warning("savepoints: %s", error)
            except Exception:
                log.exception("savepoints")

    def look(self) -> None:
        """Make what is to be made now, once."""
        sources = {one.job.id: one for one in self._sources()}
        if not sources:
            return
        said = self._call(lambda client: client.all_savepoints())
        making = [one for one in said["savepoints"] if one["state"] == "making"]
        known = {(one["name"], one["position"]) for one in making}
        self._copied = {key: report for key, report in self._copied.items() if key[:2] in known}
        for one in making:
            source = sources.get(one["job"])
            if source is not None:
                self._make(source, one, self._base(source, said))
        self._sweep(sources.values(), said)

    def _base(self, source: Source, said: Mapping[str, Any]) -> str:
        return f"{self._checkpoints.savepoints(source.job)}/{said['cluster']}"

    def _make(self, source: Source, one: Mapping[str, Any], base: str) -> None:
        named = {"name": one["name"], "position": one["position"], "version": source.version}
        if not self._lasting and source.job.checkpoint is None:
            why = "the program that serves the job was started without --checkpoints, so its files end with it"
            self._give_up(named, Conflict(why))
            return
        key = one["name"], one["position"], source.version
        if key not in self._copied:
            folder = f"{base}/{one['name']}.{one['position']}.{secrets.token_hex(4)}"
            try:
                made = _made(source, int(one["batch"]), folder)
            except Exception as error:
                self._give_up(named, error)
                return
            if made is None:
                return
            self._copied[key] = made
        try:
            self._call(lambda client: client.keep_savepoint(**named, **self._copied[key]))
        except Superseded as error:
            log.info("savepoint %s: %s", one["name"], error.message)  # Another driver makes it.
        except Conflict as error:
            self._give_up(named, error)

    def _give_up(self, named: Mapping[str, Any], error: Exception) -> None:
        why = (str(error) or repr(error))[:WHY_CHARS_MAX]
        log.warning("savepoint %s: %s", named["name"], why)
        self._call(lambda client: client.drop_savepoint(**named, why=why))

    def _sweep(self, sources: Collection[Source], said: Mapping[str, Any]) -> None:
        """Delete the files of savepoints that are gone, if there are others than the last time."""
        making = {f"{one['name']}.{one['position']}" for one in said["savepoints"] if one["state"] == "making"}
        kept = {str(one["place"]).rpartition("/")[2] for one in said["savepoints"] if one["place"]}
        bases = {self._base(one, said) for one in sources}
        if self._swept == (bases, kept | making):
            return
        for base in bases:
            system, path = located(base)
            for found in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
                name, _, position = found.base_name.rpartition(".")[0].rpartition(".")
                known = position.isdigit() and int(position) <= int(said["position"])
                if known and found.base_name not in kept and f"{name}.{position}" not in making:
                    system.delete_dir(found.path)
        self._swept = bases, kept | making

    def _call(self, call: Callable[[Any], Any]) -> Any:
        return _connected(self._connect).call(call)


def _connected(connect: str) -> Any:
    from onyxq.spark.connection import connection  # the client is loaded once a job runs

    return connection(connect, os.environ.get("ONYXQ_TOKEN", ""), TIMEOUT_MS)


def _made(source: Source, first: int, folder: str) -> dict[str, Any] | None:
    """Copy the files of the last batch, and return the report of the copy; None if no batch is done that may be.

    ``first``: the first batch that may be. If the job is too fast, a later batch is copied. Raises `Incomplete`.
    """
    for left in reversed(range(_TRIES)):
        batch = last_done(source.folder)
        if batch < first or end_of_input.noted(source.folder):
            return None  # A job whose inputs have ended emits the last of its windows, and completes.
        try:
            size = save(source.folder, batch, folder)
            offsets = recorded(folder, batch, "", source.inputs)
            return {"batch": batch, "offsets": offsets, "size_bytes": size, "place": folder}
        except BaseException as error:
            _delete(folder)
            if not (left and isinstance(error, Incomplete)):
                raise
    return None


def _delete(folder: str) -> None:
    system, path = located(folder)
    if exists(system, path):
        system.delete_dir(path)


# --- jobs that begin from a savepoint ----------------------------------------------


def beginning(
    job: Job, record: bytes, resumed: Resumed | None, *, batch: int, version: int, connect: str | None
) -> tuple[bytes, Resumed | None]:
    """Return the record and the state with which a job begins, read from its savepoint if it begins from one.

    ``record``, ``resumed``: what the peer said. ``batch``: the job's last batch: a job that has one needs no savepoint.
    ``version``: of its driver, a position of the log after the job was submitted.
    Raises `Incomplete` if this host cannot reach the files.
    """
    if job.savepoint is None or batch >= 0 or (resumed is None and is_whole(record)):
        return record, resumed
    if connect is None:
        raise Incomplete(f"savepoint {job.savepoint} is not known without a peer", field="resume")
    found = _found(job.savepoint, version, connect)
    if found is None:
        raise Incomplete(f"savepoint {job.savepoint} was deleted before job {job.id} began from it", field="resume")
    place, number = str(found["place"]), int(found["batch"])
    system, path = located(place)
    if not exists(system, f"{path}/metadata"):
        raise Incomplete(
            f"job {job.id} cannot begin from savepoint {job.savepoint} on this peer: it does not reach {place}",
            hint="Give jobs, or their peers, a checkpoint path that all peers reach (--checkpoints).",
        )
    if resumed is None:
        return recorded(place, number, "", inputs_in(record), bytes_max=SOURCES_BYTES_MAX), None
    return record, evolve(resumed, job=str(found["job"]), state="saved", batch=number, place=place)


def _found(name: str, version: int, connect: str) -> Mapping[str, Any] | None:
    """Return a complete savepoint; None if a peer that has read the log up to a version does not know it."""
    until = time.monotonic() + TIMEOUT_MS / 1_000
    while True:
        said = _connected(connect).call(lambda client: client.all_savepoints())
        for one in said["savepoints"]:
            if one["name"] == name and one["place"]:
                return dict(one)
        if said["position"] >= version or time.monotonic() > until:
            return None
        time.sleep(LOOK_S / 10)
