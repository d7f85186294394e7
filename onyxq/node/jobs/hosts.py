"""The Spark hosts of a peer: processes that run the queries of the jobs that the peer drives.

A peer has one host for all its jobs, and one more for each job that asked for its own. `KeptHost` starts a host
when it is first needed, or at once if it is to be warm. It restarts a host that died, with pauses that double
from 1 s to 30 s, and stops one that was not needed for `IDLE_S`. `Link` hides how a process is started and
called, so simulations and tests use a host in memory.

Messages are maps. Orders have ``do`` (``start``, ``stop``, ``seal``, ``slots``, ``idle``, ``forget``). Events
have ``event`` (``up``, ``alive``, ``down``, ``ready``, ``progress``, ``idle``, ``completed``, ``failed``,
``stopped``, ``forgotten``); all but the first three name their ``job`` and its ``version``. The host answers
``idle`` with the same word as soon as the job has no batch under way. It answers ``stop`` with the event that
ended the query. If ``up`` contains ``alive_s``, the host sends ``alive`` that often, in seconds. It is then
killed after `SILENT_S` without a message.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias

import trio
from attrs import field, frozen

from onyxq.node.jobs.suspects import Suspects

PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0
STEADY_S = 60.0
"""Seconds of running after which the death of a host starts a new series of pauses."""
UP_TIMEOUT_S = 180.0
"""Time limit for opening a session, in seconds.

The first start on a machine also builds archives.
"""
SILENT_S = 60.0
"""Seconds without a message after which a host counts as hung, even if its process exists."""
STOP_TIMEOUT_S = 30.0
"""Time limit for stopping a query, in seconds; then the host is killed."""
IDLE_S = 60.0
"""Seconds for which a host that need not stay warm waits for the next job."""
LAST_EVENTS = ("completed", "failed", "stopped")
"""Events that end a run."""
EVENTS_MAX = 1_000
"""Maximum number of unread events of a job.

The oldest are dropped: only the newest progress matters.
"""

Message: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, int]
"""Job and version."""

log = logging.getLogger(__name__)


class HostEnded(Exception):
    """The host has ended.

    The text describes how, and ends with its last lines of output.
    """


class HostStopped(HostEnded):
    """The peer stopped the host, or its death does not count against this job: the job has not failed."""


@frozen
class Plan:
    """Configuration of a host at its start."""

    connect: str
    """``HOST:PORT`` of its peer."""
    slots: int
    work: str
    """A directory for this host alone, on the node's disk."""
    checkpoints: str | None = None
    """Path or URI of a directory that all peers reach; None: checkpoints stay in ``work``."""
    master: str = "local"
    conf: Mapping[str, str] = field(factory=dict)
    warm: bool = False
    quick_start: bool = False
    modules: tuple[str, ...] = ()
    """Directories from which jobs' functions are imported, in addition to Python's own path."""


class Link(Protocol):
    """A running host, as its peer calls it."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises `HostEnded`."""
        ...

    async def receive(self) -> Message | None:
        """Return the next event; None once the host has ended."""
        ...

    def why(self) -> str:
        """Return how the host ended."""
        ...


Launch: TypeAlias = Callable[[Plan], AbstractAsyncContextManager[Link]]
"""Starts a host, which has ended when the context is left."""


class Run:
    """One run of a job at a host: from ``start`` until the job stopped or the host ended."""

    def __init__(self, host: KeptHost, key: Key) -> None:
        self.key = key
        self._host = host
        self._events: deque[Message | HostEnded] = deque(maxlen=EVENTS_MAX)
        self._more = trio.Event()

    async def order(self, what: str, **details: Any) -> None:
        """Send an order about this job; raises `HostEnded`."""
        await self._host.send({"do": what, "job": self.key[0], "version": self.key[1], **details})

    async def event(self) -> Message:
        """Return the next event; raises `HostEnded`."""
        while not self._events:
            self._more = trio.Event()
            await self._more.wait()
        found = self._events.popleft()
        if isinstance(found, HostEnded):
            raise found
        return found

    def tell(self, event: Message | HostEnded) -> None:
        """Add an event, or the end of the host."""
        self._events.append(event)
        self._more.set()


class KeptHost:
    """A host that is started, restarted and stopped as needed."""

    def __init__(self, plan: Plan, launch: Launch) -> None:
        self.plan = plan
        """Used by the next start."""
        self.starts = 0
        """Number of starts."""
        self.ui: str | None = None
        """Address of Spark's own pages while the host is up and has them."""
        self.silent_s = SILENT_S
        self._launch = launch
        self._runs: dict[Key, Run] = {}
        self._waiters: dict[trio.Event, None] = {}
        self._wanted = trio.Event()
        self._link: Link | None = None
        self._is_up = trio.Event()
        self._refused = ""
        self._on_purpose = ""
        self._expected = False
        self._suspects = Suspects()
        self._scope = trio.CancelScope()
        self.state = "off"
        """``off``, ``starting``, ``up``, or ``pausing`` before the next start."""

    # --- life

    async def run(self) -> None:
        """Keep the host running while it is needed, until cancelled."""
        pause_s = PAUSE_FIRST_S
        while True:
            if not self._needed:
                self.state = "off"
                self._wanted = trio.Event()
                await self._wanted.wait()
            up_s = await self._once()
            if self._on_purpose or up_s > STEADY_S:
                pause_s = PAUSE_FIRST_S
            if self._on_purpose:
                continue
            self.state = "pausing"
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    @property
    def _needed(self) -> bool:
        return bool(self.plan.warm or self._runs or self._waiters or self._expected)

    def expect(self) -> None:
        """Start a host, if none runs, because a job is likely to come.

        It waits as after the last job.
        """
        self._expected = True
        self._wanted.set()

    async def _once(self) -> float:
        """Run one host from its start to its end, and return for how many seconds it was up."""
        self.state, self._on_purpose, self.starts = "starting", "", self.starts + 1
        began = trio.current_time()
        why = "the Spark host was stopped"
        try:
            with trio.CancelScope() as self._scope:
                async with self._launch(self.plan) as link:
                    self._link = link
                    why = await self._serve(link)
        except HostEnded as error:
            why = str(error)
        except Exception as error:
            log.exception("the Spark host cannot be run")
            why = f"the Spark host cannot be run: {error!r}"
        finally:
            up_s = trio.current_time() - began if self._is_up.is_set() else 0.0
            self._expected, was_up = False, self._is_up.is_set()
            self._link, self._is_up, self.ui = None, trio.Event(), None
            self._tell_end(why)
            self._wake("" if self._on_purpose or was_up else why)
        if not self._on_purpose:
            log.warning("%s", why)
        return up_s

    def _tell_end(self, why: str) -> None:
        runs, self._runs = self._runs, {}
        jobs = [job for job, _ in runs]
        blamed = frozenset() if self._on_purpose else self._suspects.died(jobs, trio.current_time())
        for (job, _), run in runs.items():
            run.tell(HostEnded(why) if job in blamed else HostStopped(self._on_purpose or why))

    async def _serve(self, link: Link) -> str:
        """Pass on the host's events until it ends, and return why it ended."""
        with trio.move_on_after(UP_TIMEOUT_S):
            while (event := await link.receive()) is not None and event.get("event") != "up":
                continue
            if event is None:
                return link.why()
            self.state, self._expected, self.ui = "up", False, _web_address(event.get("ui"))
            self._is_up.set()
            self._wake()
        if not self._is_up.is_set():
            return f"the Spark host was not up within {UP_TIMEOUT_S:.0f} s"
        assert event is not None, "the host is up, and said so"
        silent_s = self.silent_s if event.get("alive_s") else math.inf
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_idle)
            nursery.start_soon(self._try_suspects)
            why = await self._listen(link, silent_s)
            nursery.cancel_scope.cancel()
        return why

    async def _listen(self, link: Link, silent_s: float) -> str:
        """Pass on the events of a host that is up, and return why it ended or must end."""
        while True:
            with trio.move_on_after(silent_s) as scope:
                event = await link.receive()
            if scope.cancelled_caught:
                return f"the Spark host said nothing for {silent_s:g} s, and was killed"
            if event is None:
                return link.why()
            if event["event"] == "down":
                return str(event.get("error"))
            self._hand_out(event)

    def _hand_out(self, event: Message) -> None:
        job, version = event.get("job"), event.get("version")
        if isinstance(job, str) and isinstance(version, int):
            run = self._runs.get((job, version))
            if run is not None:
                run.tell(event)
                self._suspects.heard(job, str(event["event"]), trio.current_time())
                self._wake()

    def _wake(self, refused: str = "") -> None:
        """Wake the jobs that wait for the host.

        ``refused``: why none could be started.
        """
        self._refused = refused
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.set()

    async def _try_suspects(self) -> None:
        while True:
            await trio.sleep(1.0)
            self._suspects.look(trio.current_time())
            self._wake()

    async def _stop_when_idle(self) -> None:
        idle_s = 0.0
        while idle_s < IDLE_S:
            await trio.sleep(1.0)
            idle_s = 0.0 if self._needed else idle_s + 1.0
        self.stop("no job needed the Spark host")

    def stop(self, why: str) -> None:
        """Stop the running host.

        If one is needed, another starts at once.
        """
        if self._link is not None or self.state == "starting":
            self._on_purpose = why
            self._scope.cancel()

    # --- jobs

    async def begin(self, key: Key) -> Run:
        """Wait until the host is up and this job may start there, and begin a run.

        A job waits while another job is on trial for having killed the last host. Raises `HostEnded` if a start
        failed.
        """
        while not (self._is_up.is_set() and self._suspects.may_begin(key[0], trio.current_time())):
            waiter = trio.Event()
            self._waiters[waiter] = None
            self._wanted.set()
            try:
                await waiter.wait()
            finally:
                self._waiters.pop(waiter, None)
            if self._refused:
                raise HostEnded(self._refused)
        run = self._runs[key] = Run(self, key)
        return run

    async def end(self, run: Run) -> None:
        """Stop a job's query.

        If it does not stop in time, the host is stopped.
        """
        if self._runs.get(run.key) is not run:
            return
        with trio.move_on_after(STOP_TIMEOUT_S) as scope:
            try:
                await run.order("stop")
                while (await run.event()).get("event") not in LAST_EVENTS:
                    continue
            except HostEnded:
                return
            finally:
                self.forget(run)
        if scope.cancelled_caught:
            log.error("job %s did not stop within %.0f s: its Spark host is killed", run.key[0], STOP_TIMEOUT_S)
            self.stop(f"job {run.key[0]} did not stop")

    def forget(self, run: Run) -> None:
        """Ignore the further events of a run."""
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
            self._suspects.clear(run.key[0], trio.current_time())
            self._wake()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send an order; raises `HostEnded`."""
        if self._link is None:
            raise HostEnded("the Spark host has ended")
        await self._link.send(message)


def _web_address(said: Any) -> str | None:
    """Return an address to which a page may link, or None."""
    return said if isinstance(said, str) and said.startswith(("http://", "https://")) else None
