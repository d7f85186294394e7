"""Functions for scripts: one call, one connection (design: interfaces).

Each takes ``connect="HOST:PORT"``, any peer or several, comma-separated, or
``zookeeper=HOSTS`` with ``cluster``: then a peer is found there by its pulse.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from attrs import frozen

from onyxq.access.credentials import ZookeeperCredentials
from onyxq.client import AsyncClient, Client, JobOutcome, Submitted
from onyxq.client.asynchronous import ADDRESS
from onyxq.client.jobs import WAIT_MS
from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.history import following
from onyxq.history.following import Event, LogEntry
from onyxq.jobs.model import Job

GC_TIMEOUT_MS = 600_000
ASK_TIMEOUT_MS = 20_000


@frozen
class GcReport:
    """What a collection did: the position now safe to start from, records trimmed, bytes of the origin."""

    position: int
    trimmed: int
    origin_bytes: int


def gc(
    connect: str | None = None, *, zookeeper: str | None = None, cluster: str = "main", token: str | None = None
) -> GcReport:
    """Compress the replica and trim the log, through any peer; returns once it is trimmed.

    Raises `Unavailable` or `TimedOut`.
    """
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        found = client.call("gc", {}, timeout_ms=GC_TIMEOUT_MS)
    return GcReport(found["position"], found["trimmed"], found["origin_bytes"])


def submit_entry(
    entry: str,
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> Submitted:
    """Append an entry of an extension to the log, through any peer; see `Client.submit_entry`."""
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.submit_entry(entry, args)


def extension(
    name: str,
    connect: str | None = None,
    *,
    seen: int | None = None,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> Any:
    """The state of an extension, not older than the position ``seen``; raises `NotFound`."""
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.extension(name, seen=seen)


def submit(
    job: Job,
    connect: str | None = None,
    *,
    keep_ms: int | None = None,
    importable: bool = True,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> str:
    """Have a job run; its id. The same job under the same id again is the same job; see `Client.submit_job`.

    Raises `BadRequest` naming the key at fault, `JobConflict` for another job under the id, `Unavailable`.
    """
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.submit_job(job, keep_ms=keep_ms, importable=importable)


def kill(
    job_id: str,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> dict[str, Any]:
    """End a job: what it has not committed by now never counts.

    Raises `NotFound`, `Conflict` if it has ended by itself.
    """
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.kill_job(job_id)


def jobs(
    connect: str | None = None,
    *,
    state: str | None = None,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> Sequence[dict[str, Any]]:
    """The jobs that are known, of one state if given; those under way first."""
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.jobs(state)


def job(
    job_id: str,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> dict[str, Any]:
    """One job: its state, what was submitted, and its progress; raises `NotFound`."""
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.job(job_id)


def wait(
    job_id: str,
    connect: str | None = None,
    *,
    timeout: float | None = None,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> JobOutcome:
    """How a job ended, once it has, also long ago.

    ``timeout``: seconds to wait at most, a day without.  Raises `TimedOut`, `NotFound`.
    """
    wait_ms = WAIT_MS if timeout is None else round(timeout * 1000)
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.wait_job(job_id, wait_ms)


def seal(
    job_id: str,
    input: str,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> dict[str, Any]:
    """Say that nothing more comes on an input: the job completes once it has read all there is.

    Raises `NotFound`, `BadRequest` for an input that is none, `Conflict` if the job has ended.
    """
    with Client(peers(connect, zookeeper, cluster), token=token) as client:
        return client.seal_job(job_id, input)


def subscribe(
    start: int | None = None,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> Iterator[Event]:
    """Every log entry from position ``start`` (default: from now) on, for ever.

    Each item is ``(position, entry, verdict, diff)``: the entry (its ``str`` is a sentence),
    what became of it, and all that differs in the replica since the item before, as a tuple
    of `onyxq.core.diff.Change`.  It goes on when peers die and connections break.  Where it
    would need records that are trimmed, it yields the entry ``set_replica``, which no
    record holds, with the difference to the origin, and goes on behind that.

    Raises `Unavailable` if no peer can be reached at the start, and `OlderThanCluster` at an
    entry that is not installed here.
    """
    pauses = _Pauses()
    with Client(peers(connect, zookeeper, cluster), token=token) as client:

        def call(method: str, args: dict[str, Any]) -> Any:
            while True:
                try:
                    answer = client.call(method, args, timeout_ms=ASK_TIMEOUT_MS)
                except following.PASSING as error:
                    time.sleep(pauses.after(error))
                else:
                    return pauses.answered(answer)

        yield from following.drive(following.follow(start), call)


@asynccontextmanager
async def subscribe_async(
    start: int | None = None,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> AsyncIterator[AsyncIterator[Event]]:
    """As `subscribe`, on trio and asyncio::

        async with api.subscribe_async(start) as events:
            async for position, entry, verdict, diff in events: ...

    Leaving the block ends it.
    """
    pauses = _Pauses()
    addresses = await anyio.to_thread.run_sync(peers, connect, zookeeper, cluster)
    async with AsyncClient(addresses, token=token) as client:

        async def call(method: str, args: dict[str, Any]) -> Any:
            while True:
                try:
                    answer = await client.call(method, args, timeout_ms=ASK_TIMEOUT_MS)
                except following.PASSING as error:
                    await anyio.sleep(pauses.after(error))
                else:
                    return pauses.answered(answer)

        # Nothing stays open in the generator between two events, so it may be left at any of them.
        async with aclosing(following.drive_async(following.follow(start), call)) as events:
            yield events


class _Pauses:
    """How long to wait before a question is asked again; a first question is not."""

    def __init__(self) -> None:
        self._pause_s: float | None = None

    def answered(self, answer: Any) -> Any:
        """The answer; from here on errors that pass are waited out."""
        self._pause_s = following.PAUSE_FIRST_S
        return answer

    def after(self, error: OnyxqError) -> float:
        """Seconds to wait; raises the error if nobody has answered yet."""
        if self._pause_s is None:
            raise error
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, following.PAUSE_MAX_S)
        return pause_s


__all__ = [
    "Event",
    "GcReport",
    "JobOutcome",
    "LogEntry",
    "extension",
    "gc",
    "job",
    "jobs",
    "kill",
    "seal",
    "submit",
    "submit_entry",
    "subscribe",
    "subscribe_async",
    "wait",
]


def peers(connect: str | None, zookeeper: str | None, cluster: str) -> list[str]:
    """Addresses of peers, to be tried in turn; blocking where ZooKeeper is asked.

    ``connect``: one or several ``HOST:PORT``, comma-separated.  What ZooKeeper is shown
    comes from ``ONYXQ_ZOOKEEPER_AUTH`` and its neighbours.  Raises
    `BadRequest` if both are given, and what `onyxq.log.zookeeper_pulses.addresses` raises.
    """
    if zookeeper is None:
        return [one.strip() for one in (connect or ADDRESS).split(",")]
    if connect is not None:
        raise BadRequest("give either connect or zookeeper", field="zookeeper")
    from onyxq.log.zookeeper_pulses import addresses  # kazoo is loaded by those who need it

    shown = {name: os.environ.get(f"ONYXQ_ZOOKEEPER_{name.upper()}", "") for name in ("auth", "ca", "cert", "key")}
    return addresses(zookeeper, cluster, ZookeeperCredentials(**shown))
