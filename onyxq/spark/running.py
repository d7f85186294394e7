"""One job of a host: its query from start to end, in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from onyxq.jobs.encoding import decode
from onyxq.spark import pools, progress
from onyxq.spark.checkpoint import Checkpoints
from onyxq.spark.compile import Setting, compiled
from onyxq.spark.failures import of_exception
from onyxq.spark.session import of_its_own

LOOK_S = 0.2
"""Between two looks at how a query is doing."""

Say = Callable[[Mapping[str, Any]], None]


@frozen
class Order:
    """What the peer wants driven."""

    job: str
    version: int
    body: bytes = field(repr=False)
    slots: int
    batch: int
    """The last batch that was committed, or -1."""
    offsets: bytes = field(repr=False)
    """What was recorded with it."""
    sealed: frozenset[str]


class Running:
    """A job that is being driven. Each event is told through ``say``; the last is how it ended."""

    def __init__(self, session: Any, order: Order, *, connect: str | None, checkpoints: Checkpoints, say: Say) -> None:
        self._session = session
        self._order = order
        self._connect = connect
        self._checkpoints = checkpoints
        self._say = say
        self._lock = threading.Lock()
        self._query: Any = None
        self._stopped = False
        self._sealed = set(order.sealed)
        self._thread = threading.Thread(target=self._run, name=f"job {order.job}", daemon=True)

    @property
    def version(self) -> int:
        """The allocation under which it runs."""
        return self._order.version

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the query; returns at once, the event comes when it has ended."""
        with self._lock:
            self._stopped = True
            query = self._query
        if query is not None:
            threading.Thread(target=query.stop, name=f"stop {self._order.job}", daemon=True).start()

    def seal(self, name: str) -> None:
        """No more segments will come on an input: it has completed once what is there is done."""
        with self._lock:
            self._sealed.add(name)

    def slots(self, count: int) -> None:
        """Give it another share of the session."""
        pools.share(self._session, self._order.job, count)

    def _run(self) -> None:
        try:
            self._drive()
        except Exception as error:
            if self._stopped:
                self._tell("stopped")
            else:
                failure = of_exception(error)
                said = {"error": failure.error, "task": failure.task, "segment": failure.segment}
                self._tell("failed", **said, traceback=failure.traceback, restart=failure.restart, code=failure.code)
        else:
            self._tell("stopped" if self._stopped else "completed")

    def _drive(self) -> None:
        order = self._order
        job = decode(order.body)
        session = of_its_own(self._session)
        pools.enter(session, order.job, order.slots)
        folder = self._checkpoints.fit(job, version=order.version, batch=order.batch, recorded=order.offsets)
        setting = Setting(order.version, order.slots, folder, self._connect)
        writer = compiled(session, job, order.body, setting)
        with self._lock:
            if self._stopped:
                return
            self._query = writer.start()
        self._tell("ready")
        self._follow(self._query)

    def _follow(self, query: Any) -> None:
        """Tell of each batch until the query has ended; raises what ended it."""
        told, ended = self._order.batch, False
        while not ended:
            ended = query.awaitTermination(LOOK_S)
            for said in [progress.told(json.loads(one.json)) for one in query.recentProgress]:
                if said["batch"] > told:
                    told = said["batch"]
                    self._tell("progress", progress=said)

    def _tell(self, event: str, **said: Any) -> None:
        self._say({"event": event, "job": self._order.job, "version": self._order.version, **said})
