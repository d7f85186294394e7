"""The duty of a job's driver: run the job on the peer's Spark host, and report its state to the log.

A peer drives a job under a version as long as the replica assigns it. `Driving` gives the job to a host
(`onyxq.node.jobs.hosts`) together with the progress that the log has recorded. It forwards changes (slots,
sealed inputs), and appends what the host reports: the job is ready, has completed, or has failed too often in
a row. It renews the job's claims, releases those of earlier drivers (`onyxq.node.jobs.held_claims`), and keeps
the job's last progress for display.

Two drivers may run at the same time. A driver that was replaced and has not read so yet gets the verdict
``superseded`` for everything that it appends.
"""

from __future__ import annotations

import base64
import logging
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio
from attrs import define, evolve, field, frozen

from log_entries import complete_job, driver_ready, fail_job, report_job
from onyxq.core.duties import Drive
from onyxq.core.errors import LogUnavailable, OnyxqError
from onyxq.core.jobs.lifetime import (
    COMPLETED,
    ERROR_BYTES_MAX,
    PROGRESS_BYTES_MAX,
    end_of,
    is_over,
    resumable,
)
from onyxq.core.replica import Job, Replica
from onyxq.jobs import encoding
from onyxq.jobs.inherited_state import stateful
from onyxq.jobs.model import Input
from onyxq.jobs.progress import Progress, reported, unpacked
from onyxq.node.jobs.held_claims import LEASE_MS, Held, held, parts, to_renew, useless
from onyxq.node.jobs.hosts import LAST_EVENTS, HostEnded, HostStopped, KeptHost, Launch, Message, Plan, Run
from onyxq.node.jobs.job_series import JobSeries
from onyxq.node.jobs.standby import foresee
from onyxq.node.node import Node

PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0
"""Pause before a failed job starts again, in seconds: the first, and the longest."""
STEADY_S = 60.0
"""Seconds of running after which a failure starts a new series."""
HOLD_EVERY_S = 15.0
"""Pause between two checks of the claims of jobs that are driven here, in seconds."""
FOLLOW_EVERY_S = 10.0
"""Pause between two counts of what a job has still to read, and between two records of its progress, in seconds."""
LOG_RETRY_S = 0.5
GIVE_BACK_TRIES = 5
CLAIMS_TOGETHER = 2_000
RESTARTS = 5
CHECKPOINTS, HOSTS = "checkpoints", "jobs"
"""Folders in the directory of a node's hosts; each has directories named by job id."""

log = logging.getLogger(__name__)


@frozen
class SparkSettings:
    """Settings of a peer that hosts Spark."""

    work: str
    """Directory on the node's disk."""
    slots: int
    master: str = "local"
    checkpoints: str | None = None
    warm: bool = False
    quick_start: bool = False
    modules: tuple[str, ...] = ()
    """Directories from which jobs' functions are imported."""
    conf: dict[str, str] = field(factory=dict)


@define(eq=False)
class Driven:
    """A job that is driven here."""

    job: str
    version: int
    host: KeptHost
    own: trio.CancelScope | None = None
    """Ends the job's own host, if it has one."""
    run: Run | None = None
    """Its run at the host."""
    state: str = "starting"
    """``starting``, ``running``, or ``pausing`` after a failure."""
    ready_at: float | None = None
    """When its query began to run, or None."""
    failures: int = 0
    """Number in a row."""
    error: str = ""
    """Text of the last failure."""
    progress: Progress = field(factory=Progress)
    slots: int = 0
    sealed: tuple[str, ...] = ()
    """Sealed inputs that the host knows.

    ``slots`` are those that it knows.
    """
    batch: int = -1
    seen: int = -1
    """The position at which ``batch`` was last seen to be the last one."""
    floor: int = -1
    """Claims granted up to this position belong to no batch that is still to be committed."""
    asked: int = -1
    """The position at which the host was asked to report when it is idle; -1 if no answer is awaited."""

    def look(self, job: Job, position: int) -> None:
        """Note the last batch as of a position.

        If it changed, claims from before the last call are useless.
        """
        if job.batch != self.batch:
            self.floor, self.batch = max(self.floor, self.seen), job.batch
        self.seen = position

    def idle(self) -> None:
        """Note that no batch was under way at a moment after the request: earlier claims are useless."""
        self.floor, self.asked = max(self.floor, self.asked), -1

    def told(self) -> dict[str, Any]:
        """Return the state of the job, for people."""
        return {
            "state": self.state,
            "host": self.host.state,
            "host_starts": self.host.starts,
            "failures": self.failures,
            "error": self.error,
            "spark_ui": self.host.ui,
            **self.progress.shown(),
        }

    def hear(self, said: Any) -> None:
        """Add a batch that the host reports; a new batch ends a series of failures."""
        try:
            report = reported(said)
        except msgspec.ValidationError as error:
            log.warning("job %s: the host's report of a batch cannot be read: %s", self.job, error)
            return
        if self.progress.add(report):
            self.failures = 0


class Driving:
    """Drives the jobs of one node that hosts Spark."""

    def __init__(self, node: Node, settings: SparkSettings, launch: Launch) -> None:
        self.driven: dict[str, Driven] = {}
        """Job id -> driven job."""
        self._node = node
        self._settings = settings
        self._launch = launch
        self._series = JobSeries(node.metrics)
        self._ending: dict[str, trio.Event] = {}
        """Job id -> event that is set once the job's last run here has ended."""
        self._shared: KeptHost | None = None
        self._nursery: trio.Nursery | None = None
        self._began = trio.Event()
        self._connect = ""

    async def run(self, connect: str) -> None:
        """Keep the host and the jobs' claims until cancelled.

        ``connect``: the address at which hosts reach this peer.
        """
        self._connect = connect
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._shared = KeptHost(self._plan("", self._settings.slots), self._launch)
            nursery.start_soon(self._shared.run)
            nursery.start_soon(self._hold)
            nursery.start_soon(foresee, self._node, self._shared)
            self._began.set()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _plan(self, job: str, slots: int) -> Plan:
        settings, work = self._settings, Path(self._settings.work)
        return Plan(
            connect=self._connect,
            slots=slots,
            work=str(work / "jobs" / job if job else work),
            checkpoints=settings.checkpoints or str(work / CHECKPOINTS),
            master=settings.master,
            conf=settings.conf,
            warm=settings.warm and not job,
            quick_start=settings.quick_start,
            modules=settings.modules,
        )

    def told(self, job: str, version: int) -> dict[str, Any] | None:
        """Return the state and progress of a job, if it is driven here under that version."""
        driven = self.driven.get(job)
        return driven.told() if driven is not None and driven.version == version else None

    @property
    def host_state(self) -> str:
        """State of the shared host, see `KeptHost.state`."""
        return self._shared.state if self._shared is not None else "off"

    def states(self) -> Counter[str]:
        """Return the number of jobs that are driven here, by their state."""
        return Counter(one.state for one in self.driven.values())

    def show_series(self) -> None:
        """Set the metrics of jobs."""
        self._series.show({job: one.progress for job, one in self.driven.items()}, trio.current_time())

    # --- one job

    async def drive(self, duty: Drive) -> None:
        """Drive a job until it has ended, or cancelled."""
        await self._began.wait()
        while (ending := self._ending.get(duty.job)) is not None:
            await ending.wait()
        job = self._job(duty.job, duty.version)
        if job is None:
            return
        driven = self._begin(job)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, driven)
                nursery.start_soon(self._follow, driven, _queues(job))
                await self._attempts(driven, _restarts(job))
                nursery.cancel_scope.cancel()
        finally:
            if self._nursery is not None:  # Otherwise the node ends, and the hosts with it.
                self._ending[duty.job] = trio.Event()
                self._nursery.start_soon(self._end, driven)

    def _job(self, name: str, version: int) -> Job | None:
        """Return the job while it is driven under that version, else None."""
        job = self._node.replica.jobs.get(name)
        return job if job is not None and job.version == version and job.state == "running" else None

    def _begin(self, job: Job) -> Driven:
        assert self._shared is not None and self._nursery is not None
        host, own = self._shared, None
        if job.own_host:
            host, own = KeptHost(self._plan(job.id, job.slots), self._launch), trio.CancelScope()
            self._nursery.start_soon(self._keep, host, own)
        driven = Driven(job.id, job.version, host, own, batch=job.batch, slots=job.slots, sealed=job.sealed)
        driven.progress = unpacked(job.progress)
        self.driven[job.id] = driven
        return driven

    async def _keep(self, host: KeptHost, scope: trio.CancelScope) -> None:
        with scope:
            await host.run()

    async def _attempts(self, driven: Driven, restarts: int) -> None:
        """Run the job until it has completed, or failed for good: more than ``restarts`` times in a row."""
        while True:
            driven.ready_at = None
            try:
                event = await self._attempt(driven)
            except HostStopped as stopped:
                log.info("job %s starts again: %s", driven.job, stopped)
                driven.error = str(stopped)
                continue
            except HostEnded as ended:
                event = {"error": str(ended), "restart": True}
            except Exception as error:
                log.exception("job %s: driving it failed", driven.job)
                event = {"error": f"its driver failed: {error!r}", "restart": True}
            if event.get("event") == "completed":
                driven.progress.finish()
                await self._append(driven, *self._report(driven), complete_job.Args(driven.job, driven.version))
                return
            if driven.ready_at is not None and trio.current_time() - driven.ready_at > STEADY_S:
                driven.failures = 0
            driven.failures, driven.error = driven.failures + 1, error_text(event)
            self._node.metrics.job_failures.add()
            if driven.failures > restarts or not event.get("restart"):
                failed = fail_job.Args(driven.job, driven.version, driven.error)
                await self._append(driven, *self._report(driven), failed)
                return
            log.warning("job %s failed, %d in a row: %s", driven.job, driven.failures, event.get("error"))
            driven.state = "pausing"
            await trio.sleep(min(PAUSE_FIRST_S * 2 ** (driven.failures - 1), PAUSE_MAX_S))

    async def _attempt(self, driven: Driven) -> Message:
        """Run the job once at the host, and return the event that ended it; raises `HostEnded`."""
        driven.state = "starting"
        await self._give_back(driven)
        run = await driven.host.begin((driven.job, driven.version))
        job = self._job(driven.job, driven.version)
        if job is None:
            driven.host.forget(run)
            await trio.sleep_forever()  # The duty is about to be cancelled.
        assert job is not None
        driven.slots, driven.sealed, driven.run, driven.asked = job.slots, job.sealed, run, -1
        await run.order(
            "start",
            body=base64.b64encode(job.body).decode(),
            slots=job.slots,
            batch=job.batch,
            offsets=base64.b64encode(job.offsets).decode(),
            sealed=list(job.sealed),
            resumed=_resumed(self._node.replica, job),
        )
        while (event := await run.event())["event"] not in LAST_EVENTS:
            await self._hear(driven, event)
        driven.host.forget(run)
        driven.run = None
        return event if event["event"] != "stopped" else {"error": "its query stopped on its own", "restart": True}

    async def _hear(self, driven: Driven, event: Message) -> None:
        if event["event"] == "ready":
            driven.state, driven.ready_at = "running", trio.current_time()
            await self._append(driven, driver_ready.Args(driven.job, driven.version))
        elif event["event"] == "progress":
            driven.hear(event.get("progress"))
        elif event["event"] == "idle":
            driven.idle()

    async def _pass_on(self, driven: Driven) -> None:
        """Forward changes of the job to the host while it runs."""
        node = self._node
        while True:
            job = self._job(driven.job, driven.version)
            if job is not None:
                driven.look(job, node.replica.position)
                try:
                    await self._tell(driven, job)
                except HostEnded as error:
                    log.debug("job %s learns this when it starts again: %s", driven.job, error)
            await node.moved()

    async def _tell(self, driven: Driven, job: Job) -> None:
        run = driven.run
        if run is None:
            return
        if job.slots != driven.slots:
            driven.slots = job.slots
            if driven.own is not None:
                driven.host.plan = evolve(driven.host.plan, slots=job.slots)
                driven.host.stop("the job has other slots")
                return
            await run.order("slots", slots=job.slots)
        for name in job.sealed:
            if name not in driven.sealed:
                driven.sealed = (*driven.sealed, name)
                await run.order("seal", input=name)

    async def _follow(self, driven: Driven, queues: Mapping[str, str]) -> None:
        """Count what the job's queues have for it, and record its progress, from time to time."""
        recorded = driven.progress.last
        while True:
            for name, queue in queues.items():
                driven.progress.set_lag(name, await self._waiting(queue))
            if driven.progress.last is not recorded:
                recorded = driven.progress.last
                await self._append(driven, *self._report(driven, curves=False))
            await trio.sleep(FOLLOW_EVERY_S)

    def _report(self, driven: Driven, *, curves: bool = True) -> list[report_job.Args]:
        """Return the entry that records a job's progress; none before its first batch, and until all peers know it."""
        if driven.progress.last is None or "report_job" not in self._node.replica.enabled:
            return []
        packed = driven.progress.pack(PROGRESS_BYTES_MAX, curves=curves)
        return [report_job.Args(driven.job, driven.version, packed)]

    async def _waiting(self, queue: str) -> int | None:
        """Return the number of tasks of a queue that are ready or in a batch; None if that is unknown."""
        if self._node.ask is None:
            return None
        try:
            counts = (await self._node.ask("count", {"queue": queue}))["counts"][queue]
        except OnyxqError:
            return None
        return int(counts["ready"]) + int(counts["claimed"])

    async def _append(self, driven: Driven, *entries: Any) -> None:
        """Append entries about the job in one record, unless the job is not driven here any more by then."""
        while self._job(driven.job, driven.version) is not None:
            try:
                _, verdicts = await self._node.verdicts(list(entries))
            except LogUnavailable as error:
                log.info("job %s: %s", driven.job, error.message)
                await trio.sleep(LOG_RETRY_S)
            else:
                for entry, verdict in zip(entries, verdicts, strict=True):
                    log.info("job %s: %s: %s", driven.job, type(entry).__module__.rpartition(".")[2], verdict)
                return

    async def _end(self, driven: Driven) -> None:
        """Stop the job's query and release its claims.

        Only then it may run here again.
        """
        try:
            if driven.run is not None:
                await driven.host.end(driven.run)
            await self._forget(driven)
            if driven.own is not None:
                driven.own.cancel()
            await self._leave(driven)
            for _ in range(GIVE_BACK_TRIES):
                if await self._give_back(driven):
                    break
                await trio.sleep(LOG_RETRY_S)
        finally:
            if self.driven.get(driven.job) is driven:
                del self.driven[driven.job]
            self._ending.pop(driven.job).set()

    async def _leave(self, driven: Driven) -> None:
        """Record the progress of a job that was killed, or that has no driver now."""
        job = self._node.replica.jobs.get(driven.job)
        if job is None or job.version != driven.version:
            return
        if is_over(job):
            self._series.keep(job.id, driven.progress, trio.current_time())
        report = self._report(driven, curves=is_over(job))
        if [one.progress for one in report] in ([], [job.progress]):
            return
        try:
            await self._node.verdicts(report)
        except LogUnavailable as error:
            log.info("job %s: its last progress is not recorded: %s", job.id, error.message)

    async def _forget(self, driven: Driven) -> None:
        """Let the host delete the job's checkpoint, once the log records the job's end.

        State of a job that did not complete is kept as long as its outcome, for a job that resumes it.
        """
        job = self._node.replica.jobs.get(driven.job)
        if job is None or job.version != driven.version or not is_over(job):
            return
        try:
            await driven.host.send(
                {
                    "do": "forget",
                    "job": job.id,
                    "version": job.version,
                    "body": base64.b64encode(job.body).decode(),
                    "batch": job.batch,
                    "offsets": base64.b64encode(job.offsets).decode(),
                    "until_ms": job.ended_ms + job.keep_ms if job.state != COMPLETED else 0,
                }
            )
        except HostEnded as error:
            log.warning("job %s has ended, and its checkpoint stays where it is: %s", job.id, error)

    # --- claims

    async def _hold(self) -> None:
        while True:
            await trio.sleep(HOLD_EVERY_S)
            await self._clear()
            running = [one for one in self.driven.values() if self._job(one.job, one.version) is not None]
            if not running:
                continue
            found = await self._held([one.job for one in running])
            for one in running:
                await self._release(useless(found.get(one.job, ()), version=one.version, floor=one.floor))
                await self._renew(one, found.get(one.job, ()))
                if found.get(one.job):
                    await self._ask_when_idle(one)

    async def _clear(self) -> None:
        """Delete what ended jobs left on this disk.

        Only a member of the ring knows which jobs have ended.
        """
        replica = self._node.replica
        if self._node.peer_id not in replica.ring.members:
            return
        here = self.driven.keys() | self._ending.keys()
        under_way = {name for name, job in replica.jobs.items() if not is_over(job)}
        for folder, keep in ((CHECKPOINTS, resumable(replica)), (HOSTS, under_way)):
            await self._node.offload(_clear, Path(self._settings.work) / folder, keep | here)

    async def _ask_when_idle(self, driven: Driven) -> None:
        if driven.run is None or driven.state != "running" or driven.asked >= 0:
            return
        driven.asked = self._node.replica.position
        try:
            await driven.run.order("idle")
        except HostEnded as error:
            log.debug("job %s: %s", driven.job, error)

    async def _held(self, jobs: Sequence[str]) -> dict[str, list[Held]]:
        found: dict[str, list[Held]] = await self._node.offload(held, self._node.replica, frozenset(jobs))
        return found

    async def _give_back(self, driven: Driven) -> bool:
        """Release the claims of this driver and of earlier ones, and return whether none are left.

        Claims of a later driver stay: it may be on another peer by now.
        """
        found = (await self._held([driven.job])).get(driven.job, [])
        mine = [one for one in found if one.version <= driven.version]
        return not mine or await self._release(mine)

    async def _release(self, claims: Sequence[Held]) -> bool:
        return await self._call("release", claims, [])

    async def _renew(self, driven: Driven, claims: Sequence[Held]) -> None:
        now_ms = self._node.replica.log_time_ms
        wanted = to_renew(claims, version=driven.version, floor=driven.floor, log_time_ms=now_ms)
        await self._call("renew", wanted, [LEASE_MS])

    async def _call(self, method: str, claims: Sequence[Held], more: list[int]) -> bool:
        """Call a method of the leaders about claims, and return whether they were reached."""
        if self._node.ask is None:
            return False
        for some in parts(claims, CLAIMS_TOGETHER):
            items = [[one.first, one.count, one.token, *more] for one in some]
            try:
                await self._node.ask(method, {"items": items})
            except OnyxqError as error:
                log.info("claims of jobs: %s: %s", method, error.message)
                return False
        return True


def _resumed(replica: Replica, job: Job) -> Message | None:
    """Return what the log knows of the job whose state a job takes over before its first batch; None for others.

    A replay has the places of another job's inputs, and none of its state: the same as after a job that has completed.
    """
    if job.batch >= 0:
        return None
    model = encoding.decode(job.body)
    if not stateful(model) or not (model.resume or job.offsets):
        return None
    name = model.resume or job.id
    found = (COMPLETED, 0, job.offsets) if job.offsets else end_of(replica, name)
    state, batch, offsets = ("", -1, b"") if found is None else found
    return {"job": name, "state": state, "batch": batch, "offsets": base64.b64encode(offsets).decode()}


def error_text(event: Message) -> str:
    """Return why a job failed, as text that fits an entry."""
    lines = [str(event.get("error") or "the job failed and the host did not say why")]
    for name in ("task", "segment"):
        if event.get(name) is not None:
            lines.append(f"{name}: {event[name]}")
    if event.get("traceback"):
        lines.append(str(event["traceback"]))
    text = "\n".join(lines)
    whole = text.encode("utf-8", "replace")
    if len(whole) <= ERROR_BYTES_MAX:
        return whole.decode("utf-8", "replace")
    # The last lines of a traceback are the most useful.
    half = ERROR_BYTES_MAX // 2 - 8
    return whole[:half].decode("utf-8", "ignore") + "\n...\n" + whole[-half:].decode("utf-8", "ignore")


def _queues(job: Job) -> dict[str, str]:
    """Return the inputs that are queues, by name."""
    try:
        tasks = encoding.decode(job.body).catalog
    except OnyxqError as error:
        log.error("job %s: %s", job.id, error.message)
        return {}
    return {task.name: task.queue for task in tasks if isinstance(task, Input) and task.queue is not None}


def _restarts(job: Job) -> int:
    try:
        return encoding.decode(job.body).restarts
    except OnyxqError as error:
        log.error("job %s: %s", job.id, error.message)
        return RESTARTS


def _clear(folder: Path, keep: Collection[str]) -> list[str]:
    """Delete what jobs left in a folder, except for some jobs, and return the ids of the others.

    Checkpoints on a path that peers share are not touched.
    """
    gone: list[str] = []
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return gone  # Nothing was ever stored.
    for entry in found:
        if entry.name not in keep and entry.is_dir() and not entry.is_symlink():
            try:
                shutil.rmtree(entry)
                gone.append(entry.name)
            except OSError as error:
                log.warning("what job %s left cannot be deleted: %s", entry.name, error)
    return gone
