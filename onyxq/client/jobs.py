"""What a client asks of jobs: submit, look, wait, seal, kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
from attrs import frozen

from onyxq.core.errors import Overloaded, TimedOut, Unavailable
from onyxq.jobs.encoding import encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Job

WAIT_MS = 86_400_000
ONE_WAIT_MS = 20_000
"""One request waits for so long at most, and is then asked again."""
ENDED = ("completed", "killed", "failed")


@frozen(kw_only=True)
class JobOutcome:
    """How a job ended: ``completed``, ``killed``, or ``failed`` with the ``error``."""

    id: str
    state: str
    error: str = ""
    """The task and segment at fault, and the traceback, as text."""
    batch: int | None = None
    """The last batch that was committed."""
    submitted_ms: int = 0
    ended_ms: int | None = None

    @property
    def completed(self) -> bool:
        """Whether it did all that there was to do."""
        return self.state == "completed"

    @staticmethod
    def of(found: dict[str, Any]) -> JobOutcome:
        """The outcome in an answer."""
        return JobOutcome(**{name: found[name] for name in JobOutcome.__annotations__ if name in found})


class Jobs:
    """The part of `AsyncClient` that is about jobs."""

    async def _ask(self, method: str, args: dict[str, Any] | None = None, *, timeout_ms: int | None = None) -> Any:
        raise NotImplementedError

    async def submit_job(
        self, job: Job, *, keep_ms: int | None = None, importable: bool = True, timeout_ms: int | None = None
    ) -> str:
        """Have a job run; its id. The same job again under the same id is the same job.

        Functions that cannot be imported by name elsewhere are pickled and sent along.
        ``importable``: those given by name are imported here, to see whether they are there.
        ``keep_ms``: how long the outcome is kept once it has ended.  Raises `BadRequest` naming the key at
        fault, `TooLarge`, `JobConflict` if another job was submitted under the id.
        """
        check(job, importable=importable)
        args: dict[str, Any] = {"body": encode(job)}
        if keep_ms is not None:
            args["keep_ms"] = keep_ms
        answer: dict[str, Any] = await self._ask("job.submit", args, timeout_ms=timeout_ms)
        return str(answer["id"])

    async def jobs(self, state: str | None = None) -> Sequence[dict[str, Any]]:
        """The jobs that are known, of one state if given; those under way first."""
        found: Sequence[dict[str, Any]] = (await self._ask("job.list", {"state": state}))["jobs"]
        return found

    async def job(self, id: str) -> dict[str, Any]:
        """One job: its state, what was submitted, and its ``progress`` as its driver tells it; raises `NotFound`."""
        found: dict[str, Any] = await self._ask("job.get", {"id": id})
        return found

    async def wait_job(self, id: str, wait_ms: int = WAIT_MS) -> JobOutcome:
        """How a job ended, once it has, also long ago; raises `TimedOut` if it has not by then, `NotFound`."""
        until, found = anyio.current_time() + wait_ms / 1000, None
        while True:
            left_ms = max(0, int((until - anyio.current_time()) * 1000))
            try:
                found = await self._ask("job.wait", {"id": id, "wait_ms": min(left_ms, ONE_WAIT_MS)})
            except (Unavailable, Overloaded, TimedOut):
                if found is None or anyio.current_time() >= until:
                    raise
                continue  # peers come and go while somebody waits for hours
            if found["state"] in ENDED:
                return JobOutcome.of(found)
            if anyio.current_time() >= until:
                why = f": {found['why']}" if found.get("why") else ""
                raise TimedOut(f"job {id} is {found['state']} after {wait_ms} ms{why}", field="wait_ms")

    async def seal_job(self, id: str, input: str) -> dict[str, Any]:
        """Say that nothing more comes on an input; the job completes once it has read all there is.

        Raises `NotFound`, `BadRequest` for an input that is none or ends by itself, `Conflict` if the job has ended.
        """
        found: dict[str, Any] = await self._ask("job.seal", {"id": id, "input": input})
        return found

    async def kill_job(self, id: str) -> dict[str, Any]:
        """End a job: what it has not committed by now never counts; raises `NotFound`, `Conflict` if it has ended."""
        found: dict[str, Any] = await self._ask("job.kill", {"id": id})
        return found
