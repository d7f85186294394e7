"""The Spark process beside a peer: runs the queries of the jobs that the peer drives, in one session.

``python -m onyxq.spark.host``; the first line on stdin is ``{"work": DIR, "connect": "HOST:PORT", ...}``, see
`Asked`. Orders are further lines of JSON, events are lines of JSON on stdout. All other output goes to stderr.
The end of stdin means that the peer has ended: then this process and all its children are killed at once.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from attrs import field, frozen
from py4j.protocol import Py4JError

from onyxq.core.errors import OnyxqError
from onyxq.jobs.encoding import decode
from onyxq.jobs.inherited_state import keeps_state
from onyxq.spark import home, java, warm_up
from onyxq.spark.checkpoint import Checkpoints
from onyxq.spark.job_run import Order, Place, Running, Say
from onyxq.spark.savepoints import Savepoints, Source
from onyxq.spark.session import Settings, descendants, kill_machine, open_session
from onyxq.spark.state_copy import Resumed, recover

CHECKPOINTS = "checkpoints"
"""Folder in the directory of a peer's hosts (`onyxq.node.jobs.driver`)."""
HOSTS = "jobs"
"""Folder in the directory of a peer's hosts, with a folder for each job that has its own host."""
REHEARSE_FIRST_S = 1.0
"""Seconds without a job after which a host that was started for one runs a warm-up query."""
REHEARSE_EVERY_S = 45.0
"""Pause between warm-up queries of a warm host, in seconds: Spark ends Python workers that were idle for a minute."""

_ending = threading.Lock()
"""Held by the thread that ends this process."""


@frozen(kw_only=True)
class Asked:
    """The host's argument."""

    work: str
    """Folder in the node's data directory."""
    connect: str | None = None
    """``HOST:PORT`` of its own peer."""
    slots: int = 1
    checkpoints: str | None = None
    """Path or URI that other peers reach as well."""
    master: str = "local"
    conf: Mapping[str, str] = field(factory=dict)
    warm: bool = False
    """Run a small query first, and now and then while the host is idle, so that jobs start fast."""
    quick_start: bool = False
    """Start the virtual machine sooner, with simple compilation."""
    modules: tuple[str, ...] = field(default=(), converter=tuple)
    """Folders from which workers import."""
    alive_s: float = 5.0
    """Seconds between ``alive`` events, which show that this process and its virtual machine work."""
    archive: bool = True
    """Build the class-data archive during the first session if there is none."""


class Host:
    """The jobs of one session."""

    def __init__(self, session: Any, asked: Asked, say: Say) -> None:
        """``say``: sends an event to the peer; any thread may call it."""
        self.say = say
        self._session = session
        self._place = Place(asked.connect, asked.slots, _checkpoints(asked))
        self._jobs: dict[str, Running] = {}
        self._stopped = threading.Event()

    def do(self, said: Mapping[str, Any]) -> None:
        """Carry out one order."""
        job = str(said["job"])
        if said["do"] == "start":
            self._start(_order(said))
            return
        running = self._jobs.get(job)
        if said["do"] == "forget":
            threading.Thread(target=self._forget, args=(said, running), name=f"forget {job}", daemon=True).start()
            return
        if running is None:
            return  # It has ended on its own.
        if said["do"] == "stop" and said["version"] == running.version:
            running.stop()
        elif said["do"] == "seal":
            running.seal(str(said["input"]))
        elif said["do"] == "idle":
            running.tell_when_idle()
        elif said["do"] == "slots":
            running.slots(int(said["slots"]))

    def keep_savepoints(self, *, lasting: bool = True) -> None:
        """Make the savepoints of its jobs, in a thread; ``lasting``: whether its checkpoints outlive this process."""
        if self._place.connect is not None:
            keeper = Savepoints(self._place.connect, self._place.checkpoints, self._sources, lasting=lasting)
            threading.Thread(target=keeper.run, args=(self._stopped,), name="savepoints", daemon=True).start()

    def _sources(self) -> list[Source]:
        running = [one for one in list(self._jobs.values()) if one.alive]
        return [one.saved for one in running if one.saved is not None]

    def stop(self, within_s: float) -> bool:
        """Stop all jobs, and return whether they have ended in time."""
        self._stopped.set()
        until = time.monotonic() + within_s
        for running in self._jobs.values():
            running.stop()
        for running in self._jobs.values():
            running.join(max(0.0, until - time.monotonic()))
        return not self.busy

    @property
    def busy(self) -> bool:
        """Whether it runs a job."""
        return any(running.alive for running in self._jobs.values())

    def _start(self, order: Order) -> None:
        before = self._jobs.get(order.job)
        resumed = None if order.resumed is None else self._jobs.get(order.resumed.job)
        running = Running(self._session, order, place=self._place, say=self.say, before=before, resumed=resumed)
        self._jobs[order.job] = running
        running.start()

    def _forget(self, said: Mapping[str, Any], running: Running | None) -> None:
        """Publish the last batch of a job whose end is in the log, and delete its checkpoint, now or later."""
        try:
            if running is not None:
                running.join()
            job = decode(base64.b64decode(said["body"]))
            record = base64.b64decode(said.get("offsets", ""))
            version = int(said["version"])
            recover(self._session, job, int(said.get("batch", -1)), record, version)
            until_ms = int(said.get("until_ms", 0)) if keeps_state(job, record) else 0
            self._place.checkpoints.forget(job, version=version, until_ms=until_ms)
        except (OSError, OnyxqError) as error:
            print(f"the checkpoint of job {said['job']} stays where it is: {error}", file=sys.stderr)
        finally:
            self.say({"event": "forgotten", "job": said["job"], "version": said["version"]})


def _checkpoints(asked: Asked) -> Checkpoints:
    """Return the places of checkpoints, and of savepoints.

    A peer deletes what jobs left in the folder of checkpoints in its own directory, so savepoints are beside it.
    """
    work = Path(asked.work).absolute()
    base = asked.checkpoints or str(work / CHECKPOINTS)
    whole = work.parent.parent if work.parent.name == HOSTS else work  # the peer's, also for a job's own host
    own = Path(base).absolute() == whole / CHECKPOINTS
    return Checkpoints(base, str(Path(base).absolute().parent / "savepoints") if own else "")


def _order(said: Mapping[str, Any]) -> Order:
    return Order(
        job=str(said["job"]),
        version=int(said["version"]),
        body=base64.b64decode(said["body"]),
        slots=int(said["slots"]),
        batch=int(said["batch"]),
        offsets=base64.b64decode(said["offsets"]),
        sealed=frozenset(said["sealed"]),
        resumed=_resumed(said.get("resumed")),
    )


def _resumed(said: Mapping[str, Any] | None) -> Resumed | None:
    return None if said is None else Resumed(**{**said, "offsets": base64.b64decode(said["offsets"])})


def main() -> None:
    """Run until stdin ends; the exit code is 1 if Spark could not be started, or died."""
    out = _take_stdout()
    asked = Asked(**json.loads(sys.stdin.readline()))
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(orders,), name="orders", daemon=True).start()
    sys.path += [folder for folder in asked.modules if folder not in sys.path]  # functions of frame tasks run here
    try:
        session = open_session(_settings(asked))
    except OnyxqError as error:
        print(f"onyxq.spark.host: {error.message}. {error.advice}", file=sys.stderr)
        end(1)
    if asked.warm:
        warm_up.warm(session, Path(asked.work))
    host = Host(session, asked, _lines_to(out))
    _watch(session, host)
    host.keep_savepoints()
    host.say({"event": "up", "alive_s": asked.alive_s, "ui": session.sparkContext.uiWebUrl})
    threading.Thread(target=_tell_alive, args=(session, host, asked.alive_s), name="alive", daemon=True).start()
    if asked.archive:
        threading.Thread(target=home.build_archive, args=(home.find_home(),), name="archive", daemon=True).start()
    first_s = REHEARSE_EVERY_S if asked.warm else REHEARSE_FIRST_S
    later_s = REHEARSE_EVERY_S if asked.warm else None
    _carry_out(orders, host, first_s, later_s, lambda: warm_up.warm(session, Path(asked.work)))


def _carry_out(
    orders: queue.SimpleQueue[str], host: Host, first_s: float, later_s: float | None, rehearse: Callable[[], None]
) -> None:
    """Carry out orders.

    When there were none for some time, and no job runs, rehearse.
    """
    wait_s: float | None = first_s
    while True:
        try:
            try:
                order = orders.get(timeout=wait_s)
            except queue.Empty:
                wait_s = later_s
                if not host.busy:
                    rehearse()
            else:
                host.do(json.loads(order))
        except Exception:
            traceback.print_exc()
            end(1)  # An invalid order is a bug of ours. The peer starts another host, and reports the reason.


def _lines_to(out: IO[str]) -> Say:
    """Return a function that writes each event as one line."""
    writing = threading.Lock()

    def say(event: Mapping[str, Any]) -> None:
        with writing:
            out.write(json.dumps(event) + "\n")
            out.flush()

    return say


def _take_stdout() -> IO[str]:
    """Return the pipe for events to the peer, and redirect all other output of this process to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


def _read(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    end(0)


def _watch(session: Any, host: Host) -> None:
    """End this process when the virtual machine has ended: the peer starts another."""
    machine = java.process(session)

    def wait() -> None:
        code = machine.wait()
        if _ending.locked():
            return
        host.say({"event": "down", "error": f"Spark's virtual machine ended with code {code}"})
        end(1)

    threading.Thread(target=wait, name="machine", daemon=True).start()


def _tell_alive(session: Any, host: Host, every_s: float) -> None:
    """Send ``alive`` events while the virtual machine answers."""
    clock = java.packages(session).java.lang.System
    while not _ending.locked():
        time.sleep(every_s)
        try:
            clock.nanoTime()
        except Py4JError:
            return  # It has ended; another thread notices that.
        host.say({"event": "alive"})


def _settings(asked: Asked) -> Settings:
    return Settings(
        work=Path(asked.work).absolute(),
        slots=asked.slots,
        master=asked.master,
        conf=dict(asked.conf),
        quick_start=asked.quick_start,
        modules=asked.modules,
    )


def end(code: int) -> None:
    """Kill all processes that this one started, and end it.

    Errors of its threads are discarded.
    """
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # Another thread ends the process with its own exit code.
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for pid in descendants(os.getpid()):
        kill_machine(pid)
    os._exit(code)


if __name__ == "__main__":
    main()
