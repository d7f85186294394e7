"""Operations of clients on jobs: submit, kill, seal, read, wait.

Each change of a job is one entry.  Each method may be repeated, and answers once this node's replica has
the change.  The node need not host Spark: the log decides which peer drives a job.  A job that no peer
can drive waits, and its state says for what.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import trio
from attrs import asdict

from log_entries import kill_job, replace_job, replay_job, restore_job, seal_input, submit_job, supersede_driver
from onyxq.core.entry import APPLIED
from onyxq.core.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    JobConflict,
    LogUnavailable,
    NotFound,
    OnyxqError,
    Unavailable,
)
from onyxq.core.jobs import lifetime
from onyxq.core.log.interface import SessionLost
from onyxq.core.replica import Job as Known
from onyxq.core.replica import Replica, TaskLimits
from onyxq.jobs import encoding
from onyxq.jobs.function_imports import references
from onyxq.jobs.host_settings import code_in
from onyxq.jobs.inherited_state import check_fit, stateful
from onyxq.jobs.job_check import check as check_job
from onyxq.jobs.model import Function, Input, Job, Join, Reduce
from onyxq.jobs.progress import shown_of
from onyxq.jobs.replays import check_replay, places_in, replayed
from onyxq.node.jobs.driver import Driving
from onyxq.node.jobs.past_batches import offsets_before
from onyxq.node.log_view import LogView
from onyxq.node.node import Node
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.savepoints.begin import check_begin
from onyxq.operations.savepoints.savepoints import Savepoints
from onyxq.operations.table.job import (
    GET_JOB,
    HOST_JOB,
    KILL_JOB,
    LIST_JOBS,
    REPLAY_JOB,
    SEAL_INPUT,
    SUBMIT_JOB,
    WAIT_JOB,
    GetJob,
    HostJob,
    HostOrders,
    JobView,
    KillJob,
    ListJobs,
    ReplayJob,
    SealInput,
    SubmitJob,
    SubmittedJob,
    WaitJob,
)
from onyxq.operations.table.job import Jobs as JobList
from onyxq.operations.table.operation import converted, plain
from onyxq.system.settings import did_you_mean

BY_NAME = (
    "Put the functions into a module that the peers that host Spark have, or start the peers with --allow-pickled."
)
TOLD_TIMEOUT_S = 1.5
"""How long a read of a job waits for its driver's report, in seconds."""
CATCH_UP_S = 3.0
TOLD_MAX = 100
"""Most jobs of a list whose drivers are asked, one question each."""
FORWARD_S = 5.0
"""How much longer the answer of another node to the call of a host may take than the call wants to wait, in seconds."""
NOT_KNOWN = "resume names no job that is known"

ServeHost: TypeAlias = Callable[[HostJob], Awaitable[HostOrders]]
"""Answers a call of a process that serves a job, or offers to, at the peer that drives the job."""


class Jobs:
    """The methods ``job.*`` of a node."""

    def __init__(self, node: Node, driver: Driving | None, log_view: LogView, serve_host: ServeHost | None) -> None:
        self._node = node
        self._log_view = log_view
        self._searching = trio.Lock()
        """Held while the log is applied again for a replay: one search at a time."""
        self._driver = driver
        self._savepoints = Savepoints(node, self._catch_up)
        self._serve_host = serve_host

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(SUBMIT_JOB, self.submit),
            served(REPLAY_JOB, self.replay),
            served(KILL_JOB, self.kill),
            served(SEAL_INPUT, self.seal),
            served(LIST_JOBS, self.list),
            served(GET_JOB, self.get),
            served(WAIT_JOB, self.wait),
            self._savepoints.handlers(),
            served(HOST_JOB, self.host),
        )

    # --- changing

    async def submit(self, args: SubmitJob) -> SubmittedJob:
        """Submit a job; return its id, the digest of its bytes, and whether it was known already.

        ``body``: as `onyxq.jobs.encoding.encode` makes it.  Raises `BadRequest` naming the key
        at fault, `Forbidden` for a function that is not taken here, `TooLarge`, `JobConflict`
        for another job under the id, `Conflict` if the job to be replaced has ended, `Unavailable`.
        """
        return await self._submitted(encoding.decode(args.body), keep_ms=args.keep_ms, replace=args.replace)

    async def replay(self, args: ReplayJob) -> SubmittedJob:
        """Start a job that reads the inputs of another one again; return the same as `submit`.

        Raises `NotFound`, `Conflict` if only the outcome of the other job is known, and what `submit` raises.
        """
        if args.from_start + (args.from_batch is not None) + (args.from_ms is not None) != 1:
            raise BadRequest("the request must give one of from_start, from_batch and from_ms", field="from_ms")
        if args.from_ms is not None and args.from_ms > self._node.wall_ms():
            raise BadRequest("from_ms is in the future: there is nothing to read again", field="from_ms")
        (old, known), begin = await self.definition(args.id), b""
        check_replay(old, since_ms=args.from_ms, outputs=args.outputs, same_outputs=args.same_outputs)
        if args.from_batch is not None:
            async with self._searching:
                begin = places_in(await offsets_before(self._node, self._log_view, known, args.from_batch))
        job = replayed(old, id=args.new_id, since_ms=args.from_ms, outputs=args.outputs, begin=begin)
        return await self._submitted(job, keep_ms=args.keep_ms, begin=begin)

    async def start(self, job: Job, *, keep_ms: int, sealed: Sequence[str]) -> SubmittedJob:
        """Submit a job, and seal some of its inputs by the same record; raises what `submit` raises."""
        return await self._submitted(job, keep_ms=keep_ms, sealed=sealed)

    async def definition(self, name: str) -> tuple[Job, Known]:
        """Return a job as it was submitted, if its functions are taken here, and as the log has it.

        Raises `NotFound`, `Conflict` if only its outcome is known, `Forbidden`.
        """
        await self.known(name)
        known = self._node.replica.jobs.get(name)
        if known is None:
            raise Conflict(
                f"job {name} has ended, and its definition is not kept any more",
                field="id",
                hint="Submit the job under another id. An input of files or Kafka begins at its since_ms.",
            )
        job = encoding.decode(known.body)
        self._check(job)
        return job, known

    def has_ended(self, name: str) -> bool:
        """Return whether this node knows that a job has ended."""
        found = job_of(self._node.replica, name)
        return found is not None and found["state"] in lifetime.ENDED

    def check_new(self, job: Job) -> None:
        """Raise what submitting a job would raise because of the job itself, or because of another with its id."""
        self._check(job)
        if lifetime.digest_of(self._node.replica, job.id) not in (None, encoding.digest(encoding.encode(job))):
            raise _taken(job.id)

    def _check(self, job: Job) -> None:
        """Raise `BadRequest` for a job that is wrong, and `Forbidden` for a function that is not taken here."""
        check_job(job)
        allowed = self._node.job_functions
        if not allowed.pickled:
            for place in encoding.pickles_in(encoding.to_map(job)):
                raise Forbidden(f"{place} is pickled: here functions come by name", field=place, hint=BY_NAME)
            for place in () if job.host is None else code_in(job.host):
                raise Forbidden(
                    f"host.{place} brings code: here functions come by name",
                    field=f"host.{place}",
                    hint="Put it into the peers' --spark-conf file, or start the peers with --allow-pickled.",
                )
        for place, name in references(job):
            if not allowed.takes(name):
                raise Forbidden(
                    f"{place} is {name[:200]!r}: jobs may not name functions of that module here",
                    field=place,
                    hint="Name its module in the peers' setting job_modules.",
                )

    async def _submitted(
        self, job: Job, *, keep_ms: int, replace: bool = False, begin: bytes = b"", sealed: Sequence[str] = ()
    ) -> SubmittedJob:
        """Check a job and append its entry; see `submit`. ``sealed``: inputs that get no data after that."""
        self._check(job)
        if replace and (job.resume is None or job.savepoint is not None):
            raise BadRequest("replace is for a job that resumes another", field="replace", hint="Set resume.")
        if replace or job.savepoint is not None:
            await self._catch_up()
        known = lifetime.digest_of(self._node.replica, job.id)
        position = await self._check_resumed(job, replace) if known is None else -1
        entry = entry_of(job, keep_ms=keep_ms, begin=begin, position=position)
        if known not in (None, entry.digest):
            raise _taken(job.id)
        if replace and job.resume is not None:  # The two were compared unless the new one is known: then it repeats.
            compared = self._node.replica.jobs.get(job.resume) if known is None else None
            entry = replacing(entry, job.resume, compared)
        seals = [seal_input.Args(job.id, name) for name in sealed]
        position, (verdict, *_) = await self._node.verdicts([entry, *seals])
        if verdict not in (APPLIED, submit_job.REPEAT):
            raise self._not_submitted(job, verdict)
        repeat = verdict == submit_job.REPEAT
        return SubmittedJob(id=job.id, digest=entry.digest, position=position, repeat=repeat)

    def _not_submitted(self, job: Job, verdict: str) -> OnyxqError:
        """Return the error for a job that the log refused."""
        if verdict == submit_job.CONFLICT:
            return _taken(job.id)
        if verdict == lifetime.OVER:
            return _over(str(job.resume), job_of(self._node.replica, str(job.resume)))
        if verdict == lifetime.UNKNOWN:
            return BadRequest(NOT_KNOWN, field="resume")
        if verdict == replace_job.BESIDE:
            hint = f"If only the new job is to run, kill the other one: onyxq job kill {job.resume}."
            return Conflict(verdict, field="resume", hint=hint)
        if verdict == replace_job.CHANGED:
            return Conflict(verdict, field="resume", hint="Submit the job again. It is then compared with that job.")
        return _refused(verdict)

    async def _check_resumed(self, job: Job, replace: bool) -> int:
        """Raise `BadRequest` unless the job that a new one resumes, if any, has ended and its state fits.

        The same for a savepoint, whose position is returned; otherwise -1. Raise `Conflict` if a job to be replaced
        has ended.
        """
        if job.savepoint is not None:
            found = await self._savepoints.find(job.savepoint)
            return check_begin(self._node.replica, job.savepoint, found, job)
        if job.resume is not None:
            await self._check_other(job, job.resume, replace)
        return -1

    async def _check_other(self, job: Job, name: str, replace: bool) -> None:
        try:
            found = await self.known(name)
        except NotFound:
            raise BadRequest(NOT_KNOWN, field="resume") from None
        if replace and found["state"] in lifetime.ENDED:
            raise _over(name, found)
        known = self._node.replica.jobs.get(name)
        if known is not None:
            completed = found["state"] == lifetime.COMPLETED
            check_fit(encoding.decode(known.body), job, record=known.offsets, completed=completed)
        if not stateful(job):
            return
        if found["state"] not in lifetime.ENDED and not replace:
            raise BadRequest(
                f"resume names job {name}, which is {found['state']}: only an ended job hands over its state",
                field="resume",
                hint=f"Replace it (--replace), or kill it first: onyxq job kill {name}.",
            )
        end = lifetime.end_of(self._node.replica, name)
        if end is None or end[1] < 0:
            raise BadRequest(
                f"resume names job {name}, which has committed no batch: there is nothing to take over",
                field="resume",
                hint="Submit the job without resume, or resume the job that this one resumed.",
            )
        if not end[2]:
            raise BadRequest(
                f"resume names job {name}, whose offsets are not kept any more",
                field="resume",
                hint="Submit the job without resume, or begin from a savepoint: --from-savepoint NAME.",
            )

    async def kill(self, args: KillJob) -> JobView:
        """End a job now; raises `NotFound`, `Conflict` if it has ended otherwise, `Unavailable`."""
        name = args.id
        _, (verdict,) = await self._node.verdicts([kill_job.Args(name)])
        if verdict not in (APPLIED, lifetime.OVER):
            raise _unknown(name)
        found = self._known(name)
        if found["state"] != lifetime.KILLED:
            raise Conflict(f"job {name} has {found['state']} already", field="id", hint="Nothing is left to kill.")
        return converted(JobView, found)

    async def seal(self, args: SealInput) -> JobView:
        """Seal an input: it gets no more data.

        Raises `NotFound`, `BadRequest` for an unknown input, `Conflict` if the job has ended, `Unavailable`.
        """
        name, wanted = args.id, args.input
        _, (verdict,) = await self._node.verdicts([seal_input.Args(name, wanted)])
        if verdict == lifetime.UNKNOWN:
            raise _unknown(name)
        found = self._known(name)
        inputs = found.get("inputs")  # None: the job has ended, and only its outcome is known
        if verdict == seal_input.NO_INPUT and inputs is not None:
            what = did_you_mean(wanted, inputs) or (f"; it has {', '.join(inputs)}" if inputs else "; it has none")
            raise BadRequest(f"job {name} has no input {wanted!r} that can be sealed{what}", field="input")
        if verdict in (lifetime.OVER, seal_input.NO_INPUT):
            raise Conflict(f"job {name} has ended already: {found['state']}", field="id")
        return converted(JobView, found)

    # --- looking

    async def list(self, args: ListJobs) -> JobList:
        """Return all jobs that are known, those under way first, each in the order of submission.

        With ``progress`` also what the drivers report of the first `TOLD_MAX` that run.
        """
        replica = self._node.replica
        found = [shown(job) for job in replica.jobs.values()]
        prefix = f"{lifetime.KIND}/"
        for key, kept in replica.remembered.items():
            if key.startswith(prefix):
                found.append(shown_outcome(key.removeprefix(prefix), kept.answer))
        found.sort(key=lambda one: (one["state"] in lifetime.ENDED, one["submitted_ms"], one["id"]))
        wanted = [one for one in found if args.state in (None, one["state"])]
        if args.progress:
            async with trio.open_nursery() as nursery:
                for one in [one for one in wanted if one["state"] == lifetime.RUNNING][:TOLD_MAX]:
                    nursery.start_soon(self._add_told, one)
        return converted(JobList, {"position": replica.position, "jobs": wanted})

    async def get(self, args: GetJob) -> JobView:
        """Return one job: its state, what was submitted, and what its driver reports of it; raises `NotFound`."""
        name = args.id
        found = await self.known(name)
        job = self._node.replica.jobs.get(name)
        if job is not None:
            more = {"job": described(job.body), "progress": await self._told(job)}
        else:
            kept = lifetime.outcome_of(self._node.replica, name)
            more = {"job": None, "progress": None if kept is None else shown_of(kept.get("progress", b""))}
        return converted(JobView, {**found, **more})

    async def wait(self, args: WaitJob) -> JobView:
        """Return a job once it has ended, or as it is after ``wait_ms``; raises `NotFound`."""
        name = args.id
        found = await self.known(name)
        with trio.move_on_after(args.wait_ms / 1000):
            while found["state"] not in lifetime.ENDED:
                await self._node.moved()
                found = self._known(name)
        return converted(JobView, found)

    async def known(self, name: str) -> dict[str, Any]:
        """Return a job as this node knows it; an unknown job is looked up after reading the whole log."""
        try:
            return self._known(name)
        except NotFound:
            await self._catch_up()
        return self._known(name)

    def _known(self, name: str) -> dict[str, Any]:
        found = job_of(self._node.replica, name)
        if found is None:
            raise _unknown(name)
        return found

    async def _catch_up(self) -> None:
        node = self._node
        if node.session is None or not node.log_connected:
            raise LogUnavailable("it is not known whether the job exists: this node cannot reach the log")
        try:
            end = await node.session.tail()
        except SessionLost as error:
            raise LogUnavailable(error.message) from None
        with trio.move_on_after(CATCH_UP_S):
            while node.replica.position < end:
                await node.moved()
            return
        raise LogUnavailable(f"this node has read the log up to {node.replica.position} of {end} only")

    # --- what the driver tells

    async def _add_told(self, one: dict[str, Any]) -> None:
        job = self._node.replica.jobs.get(one["id"])
        one["progress"] = None if job is None else await self._told(job)

    async def _told(self, job: Known) -> dict[str, Any] | None:
        """Return the report of the job's driver if that answers soon, otherwise the last one in the log."""
        told = await self._told_by(job.driver, job) if job.driver else None
        return shown_of(job.progress) if told is None else told

    async def _told_by(self, name: str, job: Known) -> dict[str, Any] | None:
        """Return a peer's report of a job that it drives, if it answers soon."""
        node = self._node
        peer = node.replica.peers.get(name)
        if peer is None:
            return None
        asked = {"id": job.id, "version": job.version}
        try:
            if peer.node == node.node_id:
                return await self.told_here(asked)
            told: dict[str, Any] | None = await node.call(peer.node, "job.told", asked, timeout_s=TOLD_TIMEOUT_S)
        except (Unavailable, OnyxqError):
            return None
        return told

    async def told_here(self, args: dict[str, Any]) -> dict[str, Any] | None:
        """Return this node's report of a job that it drives under a version."""
        return None if self._driver is None else self._driver.told(str(args["id"]), int(args["version"]))

    # --- hosts in processes of users

    async def host(self, args: HostJob) -> HostOrders:
        """Pass on the call of a process that serves a job, or offers to.

        An offer goes to the peer that drives the job, later calls to the same node. Raises `NotFound`, `BadRequest` for
        a job whose peer takes no such process, `Unavailable`.
        """
        if args.number:
            return await self._host_at(args.node, args)
        found = await self.known(args.id)
        job = self._node.replica.jobs.get(args.id)
        if job is None or lifetime.is_over(job):
            return HostOrders(state="ended", why=f"job {args.id} is {found['state']}")
        host = encoding.decode(job.body).host
        if host is None or host.submit_wait_ms is None:
            raise BadRequest(
                f"job {args.id} takes no process from outside its peers",
                field="id",
                hint="Submit it with own_host=True and host=HostSettings(submit_wait_ms=...).",
            )
        if supersede_driver.__name__.rpartition(".")[2] not in self._node.replica.enabled:
            raise Unavailable("some peers are of an older version, which cannot fence such processes", field="id")
        peer = self._node.replica.peers.get(job.driver)
        if peer is None:
            with trio.move_on_after(args.wait_ms / 1000):
                await self._node.moved()
            return HostOrders(state="waiting")
        return await self._host_at(peer.node, args)

    async def _host_at(self, node: str, args: HostJob) -> HostOrders:
        if node == self._node.node_id:
            return await self.host_here(plain(args))
        timeout_s = args.wait_ms / 1000 + FORWARD_S
        return converted(HostOrders, await self._node.call(node, "job.host.here", plain(args), timeout_s=timeout_s))

    async def host_here(self, args: dict[str, Any]) -> HostOrders:
        """Answer such a call at the peer that drives the job."""
        if self._serve_host is None:
            raise Unavailable("this peer hosts no Spark", field="id")
        return await self._serve_host(converted(HostJob, args))


def entry_of(job: Job, *, keep_ms: int, begin: bytes = b"", position: int = -1) -> submit_job.Args:
    """Return the entry that submits a checked job; ``begin``: the record of the places where its inputs begin.

    ``position``: identifies the savepoint from which it begins.
    """
    body = encoding.encode(job)
    entry: Callable[..., submit_job.Args] = partial(replay_job.Args, begin=begin) if begin else submit_job.Args
    if job.savepoint is not None:
        entry = partial(restore_job.Args, savepoint=job.savepoint, position=position)
    return entry(
        id=job.id,
        body=body,
        digest=encoding.digest(body + begin),
        scheduler=job.scheduler,
        percentage=job.percentage,
        min_slots=job.min_slots,
        max_slots=job.max_slots or 0,
        tags=job.tags,
        zones=job.zones,
        beside=job.beside or "",
        inputs=tuple(
            task.name for task in job.catalog if isinstance(task, Input) and not (task.bounded or task.static)
        ),
        tasks=tuple(_limits(task) for task in job.catalog if isinstance(task, (Function, Reduce, Join))),
        own_host=job.own_host,
        keep_ms=keep_ms,
        # State of windows is taken over by the driver, together with the offsets that belong to it.
        resume="" if stateful(job) or job.savepoint is not None else job.resume or "",
    )


def replacing(entry: submit_job.Args, earlier: str, compared: Known | None) -> replace_job.Args:
    """Return the entry that submits the same job in place of an earlier one.

    ``compared``: the earlier job as it was when the new job was found to fit it. If None, the entry ends no job.
    """
    submitted = -1 if compared is None else compared.submitted
    return replace_job.Args(**asdict(entry, recurse=False), replaces=earlier, submitted=submitted)


def _limits(task: Function | Reduce | Join) -> TaskLimits:
    return task.name, task.min_slots, task.max_slots or 0, task.percentage


def job_of(replica: Replica, name: str) -> dict[str, Any] | None:
    """Return a job as clients see it, or its outcome if only that is known; None if there is none."""
    found = replica.jobs.get(name)
    if found is not None:
        return shown(found)
    kept = lifetime.outcome_of(replica, name)
    return shown_outcome(name, kept) if kept is not None else None


def shown(job: Known) -> dict[str, Any]:
    """Return a job of the replica as clients see it."""
    failed = job.state == lifetime.FAILED
    return {
        "id": job.id,
        "state": job.state,
        "why": "" if failed else job.why,
        "error": job.why if failed else "",
        "driver": job.driver or None,
        "ready": job.ready,
        "slots": job.slots,
        "task_slots": dict(job.task_slots),
        "scheduler": job.scheduler,
        "percentage": job.percentage,
        "min_slots": job.min_slots,
        "max_slots": job.max_slots or None,
        "tags": list(job.tags),
        "zones": list(job.zones),
        "beside": job.beside or None,
        "own_host": job.own_host,
        "inputs": list(job.inputs),
        "sealed": list(job.sealed),
        "batch": job.batch if job.batch >= 0 else None,
        "version": job.version if job.version >= 0 else None,
        "digest": job.digest,
        "submitted_ms": job.submitted_ms,
        "ended_ms": job.ended_ms if job.ended_ms >= 0 else None,
    }


def shown_outcome(name: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clients' view of an ended job whose outcome is all that is kept."""
    batch, failed = kept["batch"], kept["state"] == lifetime.FAILED
    return {
        "id": name,
        "state": kept["state"],
        "why": "" if failed else kept["error"],
        "error": kept["error"] if failed else "",
        "batch": batch if batch >= 0 else None,
        "digest": kept["digest"],
        "submitted_ms": kept["submitted_ms"],
        "ended_ms": kept["ended_ms"],
    }


def described(body: bytes) -> dict[str, Any] | None:
    """Return the submitted job as plain values; a pickled function has its name and size."""
    try:
        said = encoding.to_map(encoding.decode(body))
    except OnyxqError:
        return None
    found: dict[str, Any] = _without_pickles(said)
    return found


def _without_pickles(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: len(item) if key == "pickled" and isinstance(item, bytes) else _without_pickles(item)
            for key, item in value.items()
        }
    return [_without_pickles(item) for item in value] if isinstance(value, (list, tuple)) else value


def _taken(name: str) -> JobConflict:
    return JobConflict(f"there is another job {name}", field="id")


def _over(name: str, found: Mapping[str, Any] | None) -> Conflict:
    """Return the error for a job that cannot be replaced because it has ended; ``found``: the job, if it is known."""
    how = "" if found is None else ", ".join(filter(None, (found["state"], found["why"])))
    return Conflict(
        f"resume names job {name}, which has ended already{f' ({how})' if how else ''}: nothing is left to replace",
        field="resume",
        hint="If no other job has replaced it, submit the job without replace: it then resumes the ended job.",
    )


def _refused(verdict: str) -> BadRequest:
    """Return the error for the verdict about a job that the log refuses, which begins with the field."""
    return BadRequest(verdict, field=verdict.partition(" ")[0].rstrip(":"))


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no job {name!r}", field="id", hint="List all jobs: onyxq job list.")
