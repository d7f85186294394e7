"""Calls of functions that get a DataFrame: the process that commits a batch has no session, so it asks the host.

The host listens at a socket in a folder that only its user may enter. A request names the hidden files of a batch. The
answer is null, or the failure of the function.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict

from onyxq.core.errors import Unavailable
from onyxq.jobs.model import Job, Output
from onyxq.jobs.options import takes_frame
from onyxq.spark.failures import Failure, TaskFailed, of_exception
from onyxq.spark.files.staging import Folder
from onyxq.spark.places import scheme_of

LOOK_S = 0.1
"""Pause between two checks whether the host still serves, in seconds."""
_FOLDER_BYTES_MAX = 80
"""Longest folder for temporary files in which the path of a socket fits into its address."""
_PATTERN = re.compile(r"[\\{}\[\]*?]")
"""Characters with which Spark takes a path for a pattern."""

Call = Callable[[Any, Mapping[str, Any]], None]
"""Calls the function of a request with a DataFrame; raises `TaskFailed` with what it raised."""


def asks_frame(job: Job) -> bool:
    """Return whether a function of the job gets a DataFrame."""
    return any(isinstance(task, Output) and takes_frame(task) for task in job.catalog)


@contextlib.contextmanager
def serving(session: Any, job: Job, call: Call) -> Iterator[str]:
    """Serve calls of a job's functions with a session, and yield the address; empty if no function gets a DataFrame.

    A call under way when the context ends continues, as a call of a replaced driver does.
    """
    if not asks_frame(job):
        yield ""
        return
    pool = session.sparkContext.getLocalProperty("spark.scheduler.pool")

    def answered(request: Mapping[str, Any]) -> Failure | None:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        try:
            call(session.read.parquet(*request["paths"]), request)
        except Exception as error:
            return of_exception(error)
        return None

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            failure = answered(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(None if failure is None else asdict(failure)).encode() + b"\n")

    short = len(os.fsencode(tempfile.gettempdir())) <= _FOLDER_BYTES_MAX
    within = None if short else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="onyxq-", dir=within) as folder,
        _Server(f"{folder}/calls", Handler) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), name=f"calls of {job.id}", daemon=True)
        thread.start()
        try:
            yield f"{folder}/calls"
        finally:
            server.shutdown()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


def ask(folder: Folder, paths: Sequence[str], request: Mapping[str, Any]) -> None:
    """Let the host call the function of an output with the rows of hidden files, which are paths in its file system.

    Raises `TaskFailed` with what the function raised, `Unavailable` if the host ends before it answers.
    """
    if not folder.calls:
        raise Unavailable(f"output {folder.name}: only the host of a job has the session for its function")
    _, base = folder.system()
    # Behind a question mark are settings of Arrow, such as a region.
    uri = folder.path.partition("?")[0].rstrip("/") if scheme_of(folder.path) else ""
    start = uri or f"file://{os.path.abspath(base)}"
    uris = [_PATTERN.sub(r"\\\g<0>", f"{start}{path[len(base) :]}") for path in paths]
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(folder.calls)
        link.sendall(json.dumps({**request, "paths": uris}).encode() + b"\n")
        with link.makefile("rb") as answers:
            answer = answers.readline()
    if not answer:
        raise Unavailable(f"output {folder.name}: the host ended during the call of its function")
    failure = json.loads(answer)
    if failure is not None:
        raise TaskFailed(Failure(**failure))
