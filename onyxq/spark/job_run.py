"""One job of a host: its query from start to end, in its own thread."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import evolve, field, frozen
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.jobs.encoding import decode
from onyxq.jobs.model import Job
from onyxq.spark import java, pools, progress, savepoints, state_copy
from onyxq.spark.checkpoint import Checkpoints, end_event_time, note_job, restored_batch
from onyxq.spark.failures import of_exception, with_full_disks
from onyxq.spark.files import file_sink
from onyxq.spark.places import check_place, located
from onyxq.spark.plan import end_of_input, lifecycles
from onyxq.spark.plan.compile import Setting, bounded, compiled, folders_of, inputs_of, sources
from onyxq.spark.plan.inputs import keeps_list
from onyxq.spark.plan.regions import streams, timed
from onyxq.spark.plan.rows import END
from onyxq.spark.session import of_its_own
from onyxq.spark.sinks.calls import call_with_frame
from onyxq.spark.sinks.frame_calls import serving
from onyxq.spark.state_copy import Resumed

LOOK_S = 0.2
"""Pause between two checks of a query, in seconds."""
OVER_EVERY_S = 1.0
"""Pause between two checks whether the job is over, in seconds."""
UNFINISHED = ("scheduled", "waiting", "ready", "claimed")
LOOKED_AT = 4
"""Number of the latest batches that show whether the inputs have ended."""
QUEUE_TIMEOUT_MS = 10_000
ENDLESS = ("rate", "rate-micro-batch")
"""Input formats that never run out of rows."""

_log = logging.getLogger(__name__)

Say = Callable[[Mapping[str, Any]], None]
Step: TypeAlias = Callable[[Any, Job, Setting], Any]


@frozen
class Order:
    """What the peer wants to run."""

    job: str
    version: int
    body: bytes = field(repr=False)
    slots: int
    batch: int
    """The last batch that was committed, or -1."""
    offsets: bytes = field(repr=False)
    """What was recorded with it."""
    sealed: frozenset[str]
    resumed: Resumed | None = None
    """The job whose state it takes over before its first batch."""


@frozen
class Place:
    """The parts that are the same for all jobs of a host."""

    connect: str | None
    """The peer's address."""
    slots: int
    """Slots of the whole session: the number of parts of a batch.

    The scheduler decides how many run at once.
    """
    checkpoints: Checkpoints


class Running:
    """A job that is being driven.

    Each event is passed to ``say``; the last one is how it ended.
    """

    def __init__(
        self,
        session: Any,
        order: Order,
        *,
        place: Place,
        say: Say,
        before: Running | None = None,
        resumed: Running | None = None,
    ) -> None:
        self._session = session
        self._order = order
        self._place = place
        self._say = say
        self._before = before
        """An earlier run of the job here, which must end first."""
        self._resumed = resumed
        """The last run here of the job whose state this one takes over: it may still be stopping."""
        self._lock = threading.Lock()
        self._query: Any = None
        self._stopped = False
        self._idle_wanted = False
        self._ready = False
        self._sealed = set(order.sealed)
        self._told = -1
        """The last batch that was reported."""
        self._uses: list[progress.Use] = []
        """The sources of the query's plan."""
        self._listed: frozenset[str] = frozenset()
        """Inputs of files whose list Spark keeps."""
        self.saved: savepoints.Source | None = None
        """The checkpoint of the query, for savepoints; None until it runs."""
        self._keeps_state = False
        """Whether Spark keeps state for the query."""
        self._places: dict[str, str] = {}
        """Places that it writes to, for messages about a full disk."""
        self._thread = threading.Thread(target=self._run, name=f"job {order.job}", daemon=True)

    @property
    def version(self) -> int:
        """The allocation under which it runs."""
        return self._order.version

    def start(self) -> None:
        """Start the job, and return at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the query, and return at once.

        An event follows when it has ended.
        """
        with self._lock:
            self._stopped = True
            query = self._query
        if query is not None:
            threading.Thread(target=query.stop, name=f"stop {self._order.job}", daemon=True).start()

    def seal(self, name: str) -> None:
        """Seal an input: no more segments will come.

        It completes once all existing ones are done.
        """
        with self._lock:
            self._sealed.add(name)

    def tell_when_idle(self) -> None:
        """Send ``idle`` at the next moment without a batch under way."""
        self._idle_wanted = True

    def slots(self, count: int) -> None:
        """Change the job's share of the session."""
        pools.share(self._session, self._order.job, count)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or for that long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            if self._before is not None:
                self._before.stop()
                self._before.join()
            if self._resumed is not None:
                self._resumed.join()
            self._drive()
        except Exception as error:
            if self._stopped:
                self._tell("stopped")
            else:
                failure = with_full_disks(of_exception(error), self._places)
                said = {"error": failure.error, "task": failure.task, "segment": failure.segment}
                self._tell("failed", **said, traceback=failure.traceback, restart=failure.restart, code=failure.code)
        else:
            self._tell("stopped" if self._stopped else "completed")
        finally:
            pools.leave(self._session, self._order.job)

    def _drive(self) -> None:
        order, job = self._order, decode(self._order.body)
        session = of_its_own(self._session)
        pools.enter(session, job.id, order.slots)
        folders = folders_of(job)
        check_place(session, job.checkpoint or self._place.checkpoints.base, field="checkpoint")
        for folder in folders:
            located(folder.path)  # Only Arrow writes there.
            if folder.takes_frame:
                check_place(session, folder.path, field=f"path of output {folder.name}")
        state_copy.recover(session, job, order.batch, order.offsets, order.version)
        checkpoints = self._place.checkpoints
        self._places = {"its checkpoint": job.checkpoint or checkpoints.base}
        self._places |= {f"output {folder.name}": folder.path for folder in folders}
        record, resumed = savepoints.beginning(
            job,
            order.offsets,
            order.resumed,
            batch=order.batch,
            version=order.version,
            connect=self._place.connect,
        )
        checkpoint = checkpoints.fit(
            job, version=order.version, batch=order.batch, recorded=record, resumes=resumed is not None
        )
        setting = Setting(order.version, self._place.slots, checkpoint, self._place.connect, order.batch, order.slots)
        with serving(session, job, call_with_frame) as calls:
            self._with_lifecycles(session, job, evolve(setting, calls=calls), resumed)
        if folders and not self._stopped:
            file_sink.forget(folders, job=job.id)

    def _with_lifecycles(self, session: Any, job: Job, setting: Setting, resumed: Resumed | None) -> None:
        """Run the job's queries between the calls of its lifecycles, after it has taken over another job's state."""
        order, checkpoint = self._order, setting.checkpoint
        if resumed is not None:
            state_copy.resume(session, job, order.body, setting, resumed, self._place.checkpoints)
            setting = evolve(setting, batch=max(order.batch, restored_batch(checkpoint)))
        note_job(checkpoint, order.body)
        lifecycles.in_worker(session, order.body, order.version, "before_job")
        try:
            self._queries(session, job, setting)
        except Exception:
            with contextlib.suppress(PySparkException, Py4JJavaError):  # The first error counts.
                lifecycles.in_worker(session, order.body, order.version, "after_job")
            raise
        lifecycles.in_worker(session, order.body, order.version, "after_job")

    def _queries(self, session: Any, job: Job, setting: Setting) -> None:
        """Run the job's query.

        If it keeps state, run it again after the end of its inputs, for the last output of windows and joins.
        """
        self._query_once(session, job, setting)
        if self._keeps_state and not self._stopped and not end_of_input.noted(setting.checkpoint):
            if timed(job):
                end_event_time(setting.checkpoint)
            end_of_input.note(setting.checkpoint)
            self._query_once(session, job, setting)

    def _query_once(self, session: Any, job: Job, setting: Setting) -> None:
        writer = compiled(session, job, self._order.body, setting)
        frame = java.frame_of(writer)
        self._uses = progress.uses_of(frame)
        self._listed = frozenset(task.name for task in inputs_of(job) if keeps_list(task))
        inputs = streams(job) or sources(frame)
        self._keeps_state = END in inputs
        self.saved = savepoints.Source(job, self.version, setting.checkpoint, inputs)
        with self._lock:
            if self._stopped:
                return
            self._query = query = writer.start()
        if not self._ready:
            self._ready = True
            self._tell("ready")
        self._follow(query, job, setting)

    def _follow(self, query: Any, job: Job, setting: Setting) -> None:
        """Report each batch until the query has ended, or end it when the job is over; raises what ended it."""
        looked_at = 0.0
        step: Step = self._until_ended if end_of_input.noted(setting.checkpoint) else self._until_over
        while not self._has_ended(query):
            self._tell_progress(query)
            # The order matters: the idle moment must come after the request.
            if self._idle_wanted and not query.status["isTriggerActive"]:
                self._idle_wanted = False
                self._tell("idle")
            if time.monotonic() - looked_at >= OVER_EVERY_S and not bounded(job):
                step = step(query, job, setting)
                looked_at = time.monotonic()
        self._tell_progress(query)

    def _has_ended(self, query: Any) -> bool:
        """Wait a moment for the end of the query; before it raises what ended it, it reports the last batches."""
        try:
            return bool(query.awaitTermination(LOOK_S))
        except Exception:
            with contextlib.suppress(PySparkException, Py4JError):  # The first error counts.
                self._tell_progress(query)
            raise

    def _tell_progress(self, query: Any) -> None:
        """Report the batches that were finished since the last call."""
        reports = java.reports(query, after=self._told)
        unread = self._unread(query) if reports and self._listed else {}
        for recent in map(json.loads, reports):
            self._told = recent["batchId"]
            self._tell("progress", progress={**progress.report(recent, self._uses), "unread": unread})

    def _unread(self, query: Any) -> dict[str, int]:
        """Return how many files Spark has listed and not read, for each input of files."""
        files = java.unread_files(query)
        named = zip(self._uses, files, strict=True) if len(files) == len(self._uses) else ()
        return {use.name: count for use, count in named if use.name in self._listed and count is not None}

    # The steps of a job's end. Each returns the next one once it is done.

    def _until_over(self, query: Any, job: Job, setting: Setting) -> Step:
        """Wait until no more input can come, and queues are finished."""
        if not self._over(job):
            return self._until_over
        over_ms, drained = time.time_ns() // 1_000_000, threading.Event()
        threading.Thread(target=_wait_for_all, args=(query, drained), name=f"drain {job.id}", daemon=True).start()
        return functools.partial(self._until_drained, over_ms, drained)

    def _until_drained(self, over_ms: int, drained: threading.Event, query: Any, job: Job, setting: Setting) -> Step:
        """Wait until Spark has read everything that there was when the job was over, at ``over_ms``.

        Spark looks for data only once in ``trigger_ms``. So a look that began after ``over_ms`` must have found no
        data. Timers cause batches for ever; there, a batch that began later must be empty and have moved no place.
        """
        endless = any(task.format in ENDLESS for task in inputs_of(job))
        recent = _recent(query)[-1:]
        empty = any(progress.began_ms(said) > over_ms and progress.is_empty(said) for said in recent)
        if not (endless or drained.is_set() or empty):
            return functools.partial(self._until_drained, over_ms, drained)
        if timed(job) or not self._keeps_state:
            query.stop()
            return self._stopping
        end_of_input.note(setting.checkpoint)
        return self._until_ended

    def _until_ended(self, query: Any, job: Job, setting: Setting) -> Step:
        """Wait until windows have seen the end of all inputs."""
        if any(progress.has_ended(said) for said in _recent(query)):
            query.stop()
            return self._stopping
        return self._until_ended

    def _stopping(self, query: Any, job: Job, setting: Setting) -> Step:
        """Do nothing: the query is stopping."""
        return self._stopping

    def _over(self, job: Job) -> bool:
        """Return whether no more input can come: open-ended inputs are sealed, and their queues are finished."""
        open_ended = [task for task in inputs_of(job) if not task.bounded]
        with self._lock:
            if not all(task.name in self._sealed for task in open_ended):
                return False
        return all(_queue_is_done(self._place.connect, task.queue) for task in open_ended if task.queue is not None)

    def _tell(self, event: str, **said: Any) -> None:
        self._say({"event": event, "job": self._order.job, "version": self._order.version, **said})


def _recent(query: Any) -> list[Any]:
    """Return Spark's reports of the latest batches, oldest first."""
    return [json.loads(one) for one in java.reports(query, most=LOOKED_AT)]


def _wait_for_all(query: Any, drained: threading.Event) -> None:
    """Set an event once a query has found no data in a look that began after this call, and none is being processed.

    It is not set if the query fails or is stopped. With timers Spark makes batches for ever, so the call waits until
    the query is stopped.
    """
    with contextlib.suppress(PySparkException, Py4JError):
        query.processAllAvailable()
        if query.isActive:
            drained.set()


def _queue_is_done(connect: str | None, queue: str) -> bool:
    """Return whether all tasks of a queue are finished; False while that is unknown."""
    from onyxq.spark.connection import connection  # the client is loaded for jobs that read queues

    if connect is None:
        raise Unavailable("a job that reads a queue needs a peer to connect to", field="connect")
    try:
        counts = connection(connect, os.environ.get("ONYXQ_TOKEN", ""), QUEUE_TIMEOUT_MS).call(
            lambda client: client.count(queue)
        )
    except OnyxqError as error:
        _log.warning("queue %s: %s", queue, error.message)
        return False
    return not any(counts.get(queue, {}).get(state, 0) for state in UNFINISHED)
