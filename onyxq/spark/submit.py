"""Serving a job from a process that a user has started, for example with ``spark-submit`` on their own cluster.

The program needs only the address of a peer::

    spark-submit --master yarn driver.py --connect peer1:7400 orders

where ``driver.py`` calls `main`, or `run`. The peer that drives the job plans as always. Its Spark
host is this process: it offers to serve the job, and calls the operation ``job.host`` again and again. If its calls do
not get through for a while, it has lost the job, and stops its queries before another process is asked. Then it offers
itself again. What it still writes by then is refused, because the job has another version.
"""

from __future__ import annotations

import argparse
import os
import queue
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError

from onyxq.core.errors import LogUnavailable, OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.jobs.host_settings import HostSettings, with_settings
from onyxq.spark import java
from onyxq.spark.connection import Connection, connection
from onyxq.spark.host import Asked, Host
from onyxq.spark.session import Settings, kill_machine, machine_of, open_session

CALL_TIMEOUT_MS = 5_000
PAUSE_S = 0.5
"""Pause before a call that failed is repeated, in seconds."""
HELD = 0.6
"""Share of the lease after which this process stops, before the peer asks another one."""
STOP_S = 30.0
"""Time limit for queries to stop after the job was lost; then the virtual machine is killed."""
FORGET_S = 20.0
"""Time limit for deleting the checkpoint of a job that has ended, in seconds."""
EVENTS_MAX = 200
"""Most events in one call."""
PASSING = (Unavailable, LogUnavailable, Overloaded, TimedOut)
"""Errors that may pass."""


class Lost(Exception):
    """This process does not serve the job any more; the text says why."""


class Serving:
    """One offer of this process to serve a job, and its service until it has lost the job."""

    def __init__(self, peers: Connection, job: str) -> None:
        self._peers = peers
        self._job = job
        self._name = secrets.token_hex(8)
        self._number, self._node = 0, ""
        self._sent = time.monotonic()
        """When the last call that was answered was sent."""
        self._events: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._asked_to_forget = False

    def plan(self) -> dict[str, Any]:
        """Offer to serve the job until it needs this process, and return the plan; raises `Lost` once it is over."""
        while True:
            self._sent = time.monotonic()
            try:
                answer = self._call([], CALL_TIMEOUT_MS / 1000)
            except PASSING:
                time.sleep(PAUSE_S)
                continue
            if answer["state"] == "ended":
                raise Lost(answer["why"])
            if answer["plan"] is not None:
                plan: dict[str, Any] = answer["plan"]
                self._node = plan["node"]
                return plan

    def serve(self, session: Any, asked: Asked, held_s: float) -> None:
        """Carry out orders, until this process has lost the job and its queries have stopped; raises `Lost`."""
        host = Host(session, asked, self._events.put)
        host.keep_savepoints(lasting=bool(asked.checkpoints))
        clock = java.packages(session).java.lang.System
        self._events.put({"event": "up", "ui": session.sparkContext.uiWebUrl})
        try:
            while True:
                answer = self._exchange(held_s)
                for order in answer["orders"]:
                    host.do(order)
                    self._asked_to_forget |= order["do"] == "forget"
                if answer["state"] == "ended":
                    self._await_forgotten()
                    raise Lost(answer["why"])
                clock.nanoTime()
        except Py4JError as error:
            raise SystemExit(f"Spark's virtual machine has ended: {error}") from None
        finally:
            if not host.stop(STOP_S):
                print(f"job {self._job} did not stop within {STOP_S:g} s: Spark is killed", file=sys.stderr, flush=True)
                kill_machine(machine_of(session))
                os._exit(1)

    def _exchange(self, held_s: float) -> dict[str, Any]:
        """Send what happened, and return the answer; raises `Lost` if no call gets through."""
        events, self._number = self._happened(), self._number + 1
        while (left_s := self._sent + held_s - time.monotonic()) > 0:
            sent = time.monotonic()
            try:
                answer = self._call(events, left_s)
            except PASSING:
                time.sleep(PAUSE_S)
            else:
                self._sent = sent
                return answer
        raise Lost(f"no peer has answered for {held_s:g} s")

    def _call(self, events: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, Any]:
        said = [dict(one) for one in events]
        call = self._peers.begin(
            lambda client: client.host_job(self._job, self._name, number=self._number, node=self._node, events=said)
        )
        try:
            return call.result(timeout_s)
        except Late:
            call.cancel()
            raise TimedOut(f"no answer within {timeout_s:g} s") from None

    def _happened(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        while len(found) < EVENTS_MAX and not self._events.empty():
            found.append(self._events.get())
        return found

    def _await_forgotten(self) -> None:
        """Wait until the checkpoint of a job that has ended is deleted, if the peer asked for it."""
        until = time.monotonic() + FORGET_S
        while self._asked_to_forget and time.monotonic() < until:
            try:
                self._asked_to_forget = self._events.get(timeout=1.0)["event"] != "forgotten"
            except queue.Empty:
                continue


def run(
    job: str,
    *,
    connect: str = "",
    checkpoints: str | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    work: str | None = None,
) -> str:
    """Serve a job as its Spark host until it has ended, and return its state: ``completed``, ``killed`` or ``failed``.

    ``connect``: addresses of peers, comma-separated; default: ``ONYXQ_CONNECT``. The token is ``ONYXQ_TOKEN``.
    ``checkpoints``: path or URI for the state of the job; default: that of the peers, if they share one.
    ``work``: a folder for temporary files. Under ``spark-submit`` Spark's settings are those of its command. Elsewhere
    this starts Spark with the ``master`` and ``conf``, and the settings that the job brings.

    Raises `NotFound` for an unknown job, and `BadRequest` for a job without ``submit_wait_ms``.
    """
    addresses = connect or os.environ.get("ONYXQ_CONNECT", "127.0.0.1:7400")
    peers = connection(addresses, os.environ.get("ONYXQ_TOKEN", ""), CALL_TIMEOUT_MS)
    with tempfile.TemporaryDirectory(prefix="onyxq-", dir=work) as folder:
        session = _session(Path(folder), peers, job, master=master, conf=conf or {})
        try:
            while (state := _state(peers, job)) not in ("completed", "killed", "failed"):
                try:
                    serving = Serving(peers, job)
                    plan = serving.plan()
                    print(f"serving job {job}", file=sys.stderr, flush=True)
                    place = checkpoints or plan["checkpoints"]
                    asked = Asked(work=folder, connect=addresses, slots=plan["slots"], checkpoints=place)
                    serving.serve(session, asked, plan["lease_s"] * HELD)
                except Lost as lost:
                    print(f"job {job}: {lost}", file=sys.stderr, flush=True)
        finally:
            session.stop()
    return state


def _session(work: Path, peers: Connection, job: str, *, master: str, conf: Mapping[str, str]) -> Any:
    found = peers.call(lambda client: client.job(job))["job"] or {}
    given = HostSettings(**(found.get("host") or {}))
    return open_session(Settings(work=work, master=master, conf=with_settings(conf, given)))


def _state(peers: Connection, job: str) -> str:
    while True:
        try:
            return str(peers.call(lambda client: client.job(job))["state"])
        except PASSING:
            time.sleep(PAUSE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the job that the command names; return 0 if it completed, and 1 if it did not."""
    parser = argparse.ArgumentParser(prog="onyxq.spark.submit", description="Serve a job as its Spark host.")
    parser.add_argument("job", help="id of a job that was submitted with submit_wait_ms")
    parser.add_argument("--connect", default="", help="HOST:PORT of peers, comma-separated (ONYXQ_CONNECT)")
    parser.add_argument("--checkpoints", help="path or URI for the state of the job")
    parser.add_argument("--work", help="folder for temporary files")
    asked = parser.parse_args(arguments)
    try:
        state = run(asked.job, connect=asked.connect, checkpoints=asked.checkpoints, work=asked.work)
    except OnyxqError as error:
        print(f"{error.message}. {error.advice}", file=sys.stderr)
        return 1
    print(f"job {asked.job} has {state}" if state == "completed" else f"job {asked.job} is {state}")
    return 0 if state == "completed" else 1


if __name__ == "__main__":
    raise SystemExit(main())
