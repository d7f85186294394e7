"""The duty of a job's driver: have the job run on the peer's Spark host, and tell the log of it.

A peer drives a job under a version for as long as the replica says so.  `Driving` gives the
job to a host (`onyxq.node.jobs.hosts`) with all that the log knows of how far it has come, passes
on what changes meanwhile (its slots, sealed inputs), and appends what the host says: that
the job is ready, has completed, or has failed too often in a row.  It keeps the job's claims
alive, gives back those of earlier drivers (`onyxq.node.jobs.held_claims`), and remembers the job's
last progress for whoever asks.

Nothing here is trusted to be alone: a driver that was replaced and does not know it yet is
told ``superseded`` by whatever it appends.
"""

from __future__ import annotations

import base64
import logging
import math
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, evolve, field, frozen

from log_entries import complete_job, driver_ready, fail_job
from onyxq.core.duties import Drive
from onyxq.core.errors import LogUnavailable, OnyxqError
from onyxq.core.jobs.lifetime import is_over
from onyxq.core.replica import Job
from onyxq.jobs import encoding
from onyxq.node.jobs.held_claims import LEASE_MS, Held, held, parts, to_renew, useless
from onyxq.node.jobs.hosts import LAST_EVENTS, HostEnded, HostStopped, KeptHost, Launch, Message, Plan, Run
from onyxq.node.jobs.standby import foresee
from onyxq.node.node import Node

PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0
"""Between two starts of a job that fails."""
STEADY_S = 60.0
"""A failure of a job that ran for so long is none of a row."""
HOLD_EVERY_S = 15.0
"""Between two looks at the claims of the jobs driven here."""
LOG_RETRY_S = 0.5
GIVE_BACK_TRIES = 5
CLAIMS_TOGETHER = 2_000
ERROR_BYTES_MAX = 8 << 10
PROGRESS_FIELDS_MAX = 40
ENDED_MAX = 1_000
"""Number of ended jobs whose last progress a driver keeps."""
RESTARTS = 5
KEPT_FOLDERS = ("checkpoints", "jobs")
"""Under a host's directory; each holds directories by the ids of jobs."""

log = logging.getLogger(__name__)


@frozen
class SparkSettings:
    """How a peer hosts Spark."""

    work: str
    """Directory on the node's disk."""
    slots: int
    master: str = "local"
    checkpoints: str | None = None
    warm: bool = False
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
    """Ends the host that is the job's alone."""
    run: Run | None = None
    """Its run at the host."""
    state: str = "starting"
    """``starting``, ``running``, or ``pausing`` after a failure."""
    ready_at: float | None = None
    """When its query began to run, if it has."""
    failures: int = 0
    """In a row."""
    error: str = ""
    """Of the last failure."""
    progress: Message | None = None
    slots: int = 0
    sealed: tuple[str, ...] = ()
    """Both as the host was told."""
    batch: int = -1
    seen: int = -1
    """The position at which ``batch`` was last seen to be the last one."""
    floor: int = -1
    """Claims that were granted up to this position are of no batch that is still to be committed."""
    asked: int = -1
    """The position at which the host was asked to tell when it is idle; -1 once it has, or was not."""

    def look(self, job: Job, position: int) -> None:
        """Note the last batch as of a position: what was claimed before and is claimed still was left behind."""
        if job.batch != self.batch:
            self.floor, self.batch = max(self.floor, self.seen), job.batch
        self.seen = position

    def idle(self) -> None:
        """No batch was under way at some moment since the host was asked: what was claimed before is of none."""
        self.floor, self.asked = max(self.floor, self.asked), -1

    def told(self) -> dict[str, Any]:
        """For people."""
        return {
            "state": self.state,
            "host": self.host.state,
            "host_starts": self.host.starts,
            "failures": self.failures,
            "error": self.error,
            **(self.progress or {}),
        }


class Driving:
    """See the module's first paragraph; one for each node that hosts Spark."""

    def __init__(self, node: Node, settings: SparkSettings, launch: Launch) -> None:
        self.driven: dict[str, Driven] = {}
        """By job."""
        self._node = node
        self._settings = settings
        self._launch = launch
        self._last: dict[tuple[str, int], dict[str, Any]] = {}
        """The last progress of jobs that ended here, by job and version."""
        self._ending: dict[str, trio.Event] = {}
        """Jobs whose last run here has not ended yet."""
        self._shared: KeptHost | None = None
        self._nursery: trio.Nursery | None = None
        self._began = trio.Event()
        self._connect = ""

    async def run(self, connect: str) -> None:
        """Keep the host, and the jobs' claims, until cancelled; ``connect``: where hosts reach this peer."""
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
            checkpoints=settings.checkpoints,
            master=settings.master,
            conf=settings.conf,
            warm=settings.warm and not job,
            modules=settings.modules,
        )

    def told(self, job: str, version: int) -> dict[str, Any] | None:
        """Return the last progress of a job, if it is or was driven here under that version."""
        driven = self.driven.get(job)
        if driven is not None and driven.version == version:
            return driven.told()
        return self._last.get((job, version))

    @property
    def host_state(self) -> str:
        """How the shared host is doing, see `KeptHost.state`."""
        return self._shared.state if self._shared is not None else "off"

    def states(self) -> Counter[str]:
        """How many jobs are driven here, by their state."""
        return Counter(one.state for one in self.driven.values())

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
                await self._attempts(driven)
                nursery.cancel_scope.cancel()
        finally:
            if self._nursery is not None:  # else the node ends, and the hosts with it
                self._ending[duty.job] = trio.Event()
                self._nursery.start_soon(self._end, driven)

    def _job(self, name: str, version: int) -> Job | None:
        """The job, while it is driven under that version."""
        job = self._node.replica.jobs.get(name)
        return job if job is not None and job.version == version and job.state == "running" else None

    def _begin(self, job: Job) -> Driven:
        assert self._shared is not None and self._nursery is not None
        host, own = self._shared, None
        if job.own_host:
            host, own = KeptHost(self._plan(job.id, job.slots), self._launch), trio.CancelScope()
            self._nursery.start_soon(self._keep, host, own)
        driven = Driven(job.id, job.version, host, own, batch=job.batch, slots=job.slots, sealed=job.sealed)
        self.driven[job.id] = driven
        return driven

    async def _keep(self, host: KeptHost, scope: trio.CancelScope) -> None:
        with scope:
            await host.run()

    async def _attempts(self, driven: Driven) -> None:
        """Have it run until it has completed, or failed for good."""
        restarts = _restarts(self._node.replica.jobs[driven.job])
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
                await self._append(driven, complete_job.Args(driven.job, driven.version))
                return
            if driven.ready_at is not None and trio.current_time() - driven.ready_at > STEADY_S:
                driven.failures = 0
            driven.failures, driven.error = driven.failures + 1, error_text(event)
            self._node.metrics.job_failures.add()
            if driven.failures > restarts or not event.get("restart"):
                await self._append(driven, fail_job.Args(driven.job, driven.version, driven.error))
                return
            log.warning("job %s failed, %d in a row: %s", driven.job, driven.failures, event.get("error"))
            driven.state = "pausing"
            await trio.sleep(min(PAUSE_FIRST_S * 2 ** (driven.failures - 1), PAUSE_MAX_S))

    async def _attempt(self, driven: Driven) -> Message:
        """One run at the host; the event that ended it. Raises `HostEnded`."""
        driven.state = "starting"
        await self._give_back(driven)
        run = await driven.host.begin((driven.job, driven.version))
        job = self._job(driven.job, driven.version)
        if job is None:
            driven.host.forget(run)
            await trio.sleep_forever()  # the duty is on its way out
        assert job is not None
        driven.slots, driven.sealed, driven.run, driven.asked = job.slots, job.sealed, run, -1
        await run.order(
            "start",
            body=base64.b64encode(job.body).decode(),
            slots=job.slots,
            batch=job.batch,
            offsets=base64.b64encode(job.offsets).decode(),
            sealed=list(job.sealed),
        )
        while (event := await run.event())["event"] not in LAST_EVENTS:
            await self._hear(driven, event)
        driven.host.forget(run)
        driven.run = None
        return event if event["event"] != "stopped" else {"error": "its query stopped by itself", "restart": True}

    async def _hear(self, driven: Driven, event: Message) -> None:
        if event["event"] == "ready":
            driven.state, driven.ready_at = "running", trio.current_time()
            await self._append(driven, driver_ready.Args(driven.job, driven.version))
        elif event["event"] == "progress" and isinstance(event.get("progress"), dict):
            before = (driven.progress or {}).get("batch")
            driven.progress = _plain(event["progress"])
            if driven.progress.get("batch") != before:
                driven.failures = 0
        elif event["event"] == "idle":
            driven.idle()

    async def _pass_on(self, driven: Driven) -> None:
        """Tell the host what changes of the job while it runs."""
        node = self._node
        while True:
            job = self._job(driven.job, driven.version)
            if job is not None:
                driven.look(job, node.replica.position)
                try:
                    await self._tell(driven, job)
                except HostEnded as error:
                    log.debug("job %s is told when it starts again: %s", driven.job, error)
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

    async def _append(self, driven: Driven, entry: Any) -> None:
        """Append an entry about the job, unless that is over by then."""
        while self._job(driven.job, driven.version) is not None:
            try:
                _, (verdict,) = await self._node.verdicts([entry])
            except LogUnavailable as error:
                log.info("job %s: %s", driven.job, error.message)
                await trio.sleep(LOG_RETRY_S)
            else:
                log.info("job %s: %s: %s", driven.job, type(entry).__module__.rpartition(".")[2], verdict)
                return

    async def _end(self, driven: Driven) -> None:
        """Stop its query and give back what it had claimed; only then it may run here again."""
        try:
            if driven.run is not None:
                await driven.host.end(driven.run)
            await self._forget(driven)
            if driven.own is not None:
                driven.own.cancel()
            for _ in range(GIVE_BACK_TRIES):
                if await self._give_back(driven):
                    break
                await trio.sleep(LOG_RETRY_S)
        finally:
            if self.driven.get(driven.job) is driven:
                self._remember(driven)
                del self.driven[driven.job]
            self._ending.pop(driven.job).set()

    def _remember(self, driven: Driven) -> None:
        """Keep the last progress of a job that has ended, for people who ask later."""
        job = self._node.replica.jobs.get(driven.job)
        if driven.progress is not None and job is not None and is_over(job):
            self._last[driven.job, driven.version] = {**driven.progress, "failures": driven.failures}
            for key in list(self._last)[:-ENDED_MAX]:
                del self._last[key]

    async def _forget(self, driven: Driven) -> None:
        """Have the host delete the job's checkpoint, once the log says that it has ended: nobody goes on from it."""
        job = self._node.replica.jobs.get(driven.job)
        if job is None or job.version != driven.version or not is_over(job):
            return
        try:
            body = base64.b64encode(job.body).decode()
            await driven.host.send({"do": "forget", "job": job.id, "version": job.version, "body": body})
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
        """Delete what ended jobs left on this disk; who is in the ring knows which have."""
        replica = self._node.replica
        if self._node.peer_id not in replica.ring.members:
            return
        under_way = {name for name, job in replica.jobs.items() if not is_over(job)}
        keep = under_way | self.driven.keys() | self._ending.keys()
        await self._node.offload(_clear, Path(self._settings.work), keep)

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
        """Release what this driver, and those before it, claimed; whether nothing is left.

        Not that of a later one, which may be another peer by now.
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
        """Have the leaders do something with claims; whether they were reached."""
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


def _plain(progress: Message) -> Message:
    """What of a progress any answer can hold."""
    kinds = (int, str, bool, type(None))
    fine = {
        str(name): value
        for name, value in progress.items()
        if isinstance(value, kinds) or (isinstance(value, float) and math.isfinite(value))
    }
    return dict(list(fine.items())[:PROGRESS_FIELDS_MAX])


def error_text(event: Message) -> str:
    """What a job failed with, as text that an entry holds."""
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
    # A traceback says most in its last lines.
    half = ERROR_BYTES_MAX // 2 - 8
    return whole[:half].decode("utf-8", "ignore") + "\n...\n" + whole[-half:].decode("utf-8", "ignore")


def _restarts(job: Job) -> int:
    try:
        return encoding.decode(job.body).restarts
    except OnyxqError as error:
        log.error("job %s: %s", job.id, error.message)
        return RESTARTS


def _clear(work: Path, keep: Collection[str]) -> list[str]:
    """Delete what ended jobs left below a host's directory; returns the ids of those jobs.

    Checkpoints on a path that peers share are not looked at.
    """
    gone = []
    for folder in KEPT_FOLDERS:
        try:
            found = sorted((work / folder).iterdir())
        except OSError:
            continue  # nothing was ever kept
        for entry in found:
            if entry.name not in keep and entry.is_dir() and not entry.is_symlink():
                try:
                    shutil.rmtree(entry)
                    gone.append(entry.name)
                except OSError as error:
                    log.warning("what job %s left cannot be deleted: %s", entry.name, error)
    return gone
