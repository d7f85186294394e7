"""Calls of a client that are about jobs: submit, replay, read, wait, seal, kill; savepoints and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import anyio
from attrs import frozen

from onyxq.client.options import known, takes
from onyxq.client.pool import RETRYABLE
from onyxq.core.errors import OnyxqError, TimedOut
from onyxq.jobs.encoding import encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Job
from onyxq.operations.table.job import (
    GET_JOB,
    HOST_JOB,
    KEEP_MS,
    KILL_JOB,
    LETTERS_MAX,
    LIST_JOBS,
    LIST_LETTERS,
    REPLAY_JOB,
    REQUEUE_LETTERS,
    SEAL_INPUT,
    SUBMIT_JOB,
    WAIT_JOB,
    GetJob,
    HostJob,
    JobState,
    KillJob,
    ReplayJob,
    SealInput,
    SubmitJob,
    WaitJob,
)
from onyxq.operations.table.operation import A, Operation, R
from onyxq.operations.table.savepoint import (
    DELETE_SAVEPOINT,
    LIST_SAVEPOINTS,
    MAKE_SAVEPOINT,
    DeleteSavepoint,
    ListSavepoints,
    MakeSavepoint,
)
from onyxq.system.durations import Milliseconds, Timeout, as_milliseconds, exact_span

WAIT_MS = 86_400_000
ONE_WAIT_MS = 20_000
"""Longest wait of one request, in milliseconds; the client then asks again."""
SAVEPOINT_WAIT_MS = 30_000
"""How long `Jobs.savepoint_job` waits by default, in milliseconds."""
ENDED = ("completed", "killed", "failed")


@frozen(kw_only=True)
class JobOutcome:
    """How a job ended: ``completed``, ``killed``, or ``failed`` with the ``error``."""

    id: str
    state: JobState
    error: str = ""
    """The task and segment at fault, and the traceback, as text."""
    batch: int | None = None
    """Number of the last batch that was committed."""
    submitted_ms: int = 0
    ended_ms: int | None = None

    @property
    def completed(self) -> bool:
        """Whether the job finished all its work."""
        return self.state == "completed"

    @staticmethod
    def of(found: dict[str, Any]) -> JobOutcome:
        """Return the outcome in an answer."""
        return JobOutcome(**{name: found[name] for name in JobOutcome.__annotations__ if name in found})


class Begin(TypedDict, total=False):
    """The place where the inputs of a replay begin.

    Give one of these:

    - ``from_start``: inputs begin with all that they still have.
    - ``from_batch``: inputs begin where this batch of the job began.
    - ``from_ms``: inputs begin at this time, in milliseconds since the epoch.
    """

    from_start: bool
    from_batch: int | None
    from_ms: int | None


NOWHERE: Begin = {"from_start": False, "from_batch": None, "from_ms": None}


class LetterChoice(TypedDict, total=False):
    """The dead letters of a page.

    Options:

    - ``task``: only letters of this task.
    - ``error``: only letters with this text in the error, as ``type: message``.
    - ``letter``: this letter alone, by its id.
    - ``count``: the page has ``counts`` by task and error instead.
    - ``after``: letters after this id.
    - ``limit``: most letters of a page.
    - ``newest_first``: the newest letters first.
    """

    task: str | None
    error: str | None
    letter: bytes | None
    count: bool
    after: bytes | None
    limit: int
    newest_first: bool


ALL_LETTERS: LetterChoice = {
    "task": None,
    "error": None,
    "letter": None,
    "count": False,
    "after": None,
    "limit": 100,
    "newest_first": False,
}


class Jobs:
    """The part of `AsyncClient` that is about jobs."""

    async def _outlasts(self, error: OnyxqError, began: float, until: float) -> bool:
        raise NotImplementedError

    async def _do(self, operation: Operation[A, R], args: A, *, timeout_ms: Timeout = None) -> dict[str, Any]:
        raise NotImplementedError

    def random_name(self) -> str:
        """Return a unique random name."""
        raise NotImplementedError

    async def submit_job(
        self,
        job: Job,
        *,
        keep_ms: Milliseconds | None = None,
        importable: bool = True,
        replace: bool = False,
        timeout_ms: Timeout = None,
    ) -> str:
        """Submit a job and return its id. To submit the same job again under its id changes nothing.

        Functions that other machines cannot import by name are pickled and sent along. ``importable``: import
        functions given by name here, to check that they exist. ``keep_ms``: how long the outcome is kept after the
        job has ended. ``replace``: end the job in ``resume`` by the same step; if the new job is refused, that job
        continues. A job whose ``resume`` is ``savepoint:NAME`` begins from a savepoint. Raises `BadRequest` naming the
        key at fault, `TooLarge`, `JobConflict` if another job was submitted under the id, or `Conflict` if the job to
        be replaced has ended.
        """
        check(job, importable=importable)
        keep_ms = KEEP_MS if keep_ms is None else as_milliseconds(keep_ms, "keep_ms")
        asked = SubmitJob(body=encode(job), keep_ms=keep_ms, replace=replace)
        answer = await self._do(SUBMIT_JOB, asked, timeout_ms=timeout_ms)
        return str(answer["id"])

    @takes(Begin, NOWHERE)
    async def replay_job(
        self,
        id: str,
        *,
        outputs: Mapping[str, str] | None = None,
        same_outputs: bool = False,
        new_id: str | None = None,
        keep_ms: Milliseconds = KEEP_MS,
        **begin: Unpack[Begin],
    ) -> str:
        """Start a job that reads the inputs of job ``id`` again, and return its id.

        It has the definition of that job, and its windows and joins begin empty. ``outputs``: output -> its other
        queue, path, table or topic. With ``same_outputs`` all others keep their places and get their rows again.
        ``new_id``: default: an id that a repeat of the call has again, so that the repeat changes nothing. Raises
        `NotFound`, `BadRequest` naming the input or output at fault, `JobConflict` if another job has the id.
        """
        asked = ReplayJob(
            id=id,
            new_id=new_id,
            outputs=dict(outputs or {}),
            same_outputs=same_outputs,
            keep_ms=as_milliseconds(keep_ms, "keep_ms"),
            **known(begin, self.replay_job, NOWHERE),
        )
        return str((await self._do(REPLAY_JOB, asked))["id"])

    async def jobs(self, state: JobState | None = None) -> Sequence[dict[str, Any]]:
        """Return the jobs that the cluster remembers, of one state if given; running jobs first."""
        found: Sequence[dict[str, Any]] = (await self._do(LIST_JOBS, LIST_JOBS.decode({"state": state})))["jobs"]
        return found

    async def job(self, id: str) -> dict[str, Any]:
        """Return one job: its state, its definition, and the ``progress`` its driver reports. Raises `NotFound`."""
        return await self._do(GET_JOB, GetJob(id=id))

    async def wait_job(self, id: str, wait_ms: Milliseconds = WAIT_MS) -> JobOutcome:
        """Wait for a job to end and return how it ended.

        Returns at once if it has ended already. Raises `NotFound`, or `TimedOut` if it has not ended within
        ``wait_ms``.
        """
        wait_ms = as_milliseconds(wait_ms, "wait_ms")
        began = anyio.current_time()
        until = began + wait_ms / 1000
        while True:
            left_ms = max(0, int((until - anyio.current_time()) * 1000))
            try:
                found = await self._do(WAIT_JOB, WaitJob(id=id, wait_ms=min(left_ms, ONE_WAIT_MS)))
            except RETRYABLE as error:
                if await self._outlasts(error, began, until):
                    continue
                raise
            if found["state"] in ENDED:
                return JobOutcome.of(found)
            if anyio.current_time() >= until:
                why = f": {found['why']}" if found.get("why") else ""
                raise TimedOut(f"job {id} is {found['state']} after {exact_span(wait_ms)}{why}", field="wait_ms")

    async def seal_job(self, id: str, input: str) -> dict[str, Any]:
        """Seal an input: it gets no more data. The job completes once it has read all there is.

        Raises `NotFound`, `BadRequest` if the job has no such input or the input ends on its own, `Conflict` if the
        job has ended.
        """
        return await self._do(SEAL_INPUT, SealInput(id=id, input=input))

    async def host_job(
        self,
        id: str,
        host: str,
        *,
        number: int = 0,
        node: str = "",
        events: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Serve a job as its Spark host, or offer to; a program that wants that calls `onyxq.spark.submit.run`.

        ``host``: the random id of the process. ``number``: 0 while it offers to serve, then counted from 1.
        ``node``: from the plan, once it serves. ``events``: what happened since the call before. Returns ``state``,
        ``plan``, ``orders`` and ``why``. Raises `NotFound`, and `BadRequest` if the job takes no such process.
        """
        return await self._do(HOST_JOB, HostJob(id=id, host=host, number=number, node=node, events=list(events)))

    async def kill_job(self, id: str) -> dict[str, Any]:
        """End a job and discard its uncommitted work; raise `NotFound`, or `Conflict` if it has ended."""
        return await self._do(KILL_JOB, KillJob(id=id))

    async def savepoint_job(self, id: str, name: str, wait_ms: Milliseconds = SAVEPOINT_WAIT_MS) -> dict[str, Any]:
        """Save the state of a running job under a name, without stopping it; return the savepoint.

        It has the ``batch`` after which a job with ``resume="savepoint:NAME"`` continues, ``place`` and ``size_bytes``
        of its files, and the time ``at_ms``. No job can take over the state of `Frame` and `Sql` tasks from it.

        Raises `NotFound`, `BadRequest`, `Conflict` if the name is taken or the savepoint cannot be made, or `TimedOut`
        if it is not complete within ``wait_ms``. It may still become complete.
        """
        wait_ms = as_milliseconds(wait_ms, "wait_ms")
        began, request = anyio.current_time(), self.random_name()
        until = began + wait_ms / 1000
        while True:
            left_ms = max(0, int((until - anyio.current_time()) * 1000))
            args = MakeSavepoint(id=id, name=name, request=request, wait_ms=min(left_ms, ONE_WAIT_MS))
            try:
                found = await self._do(MAKE_SAVEPOINT, args)
            except RETRYABLE as error:
                if await self._outlasts(error, began, until):
                    continue
                raise
            if found["state"] == "complete":
                return found
            if anyio.current_time() >= until:
                raise TimedOut(
                    f"savepoint {name} of job {id} is not complete after {wait_ms} ms",
                    field="wait_ms",
                    hint="Repeat the request with more time: it waits for the same savepoint while that is being made.",
                )

    async def savepoints(self, id: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the savepoints of all jobs, or of one, sorted by name."""
        found: Sequence[dict[str, Any]] = (await self._do(LIST_SAVEPOINTS, ListSavepoints(id=id)))["savepoints"]
        return found

    async def delete_savepoint(self, name: str) -> None:
        """Delete a savepoint. Raises `NotFound`, or `Conflict` while a job has still to begin from it."""
        await self._do(DELETE_SAVEPOINT, DeleteSavepoint(name=name))

    @takes(LetterChoice, ALL_LETTERS)
    async def job_letters(self, id: str, **choice: Unpack[LetterChoice]) -> dict[str, Any]:
        """Return a page of ``letters`` of a job, and ``after``, where the next page begins; None at the end.

        Raises `NotFound`.
        """
        asked = {"id": id, **known(choice, self.job_letters, ALL_LETTERS)}
        return await self._do(LIST_LETTERS, LIST_LETTERS.decode(asked))

    async def requeue_job(
        self,
        id: str,
        *,
        task: str | None = None,
        error: str | None = None,
        new_id: str | None = None,
        limit: int = LETTERS_MAX,
        keep_ms: Milliseconds = KEEP_MS,
    ) -> dict[str, Any]:
        """Send dead letters of job ``id`` again, and return the ``id`` of the job that does so, and their ``count``.

        It has the definition of that job, and its windows and joins begin empty. ``task`` and ``error`` choose
        letters as for `job_letters`. ``more``: whether there were more than ``limit``. A letter is sent once, so a
        repeated call changes nothing. Raises `NotFound`, `Conflict` if only the outcome of the job is known.
        """
        keep_ms = as_milliseconds(keep_ms, "keep_ms")
        asked = {"id": id, "task": task, "error": error, "new_id": new_id, "limit": limit, "keep_ms": keep_ms}
        return await self._do(REQUEUE_LETTERS, REQUEUE_LETTERS.decode(asked))
