"""Functions for scripts: one call, one connection (design: interfaces).

Each takes ``connect="HOST:PORT"``, with one or several comma-separated peers. Or it takes ``zookeeper=HOSTS`` and
``cluster``, and finds a living peer there.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypedDict, Unpack

import anyio
import anyio.to_thread
from attrs import frozen

from onyxq.access.credentials import ZookeeperCredentials
from onyxq.client import AsyncClient, Client, JobOutcome, Submitted
from onyxq.client.asynchronous import ADDRESS
from onyxq.client.jobs import WAIT_MS
from onyxq.client.options import known, takes
from onyxq.core.errors import BadRequest, OnyxqError
from onyxq.history import following
from onyxq.history.following import Event, LogEntry
from onyxq.jobs.model import Job
from onyxq.operations.table.job import JobState
from onyxq.system.durations import Milliseconds, Seconds, as_seconds

GC_TIMEOUT_MS = 600_000
ASK_TIMEOUT_MS = 20_000


@frozen
class GcReport:
    """Outcome of a log collection.

    ``position``: the log position from which a new reader starts. ``trimmed``: number of records removed.
    ``origin_bytes``: size of the snapshot.
    """

    position: int
    trimmed: int
    origin_bytes: int


class ClusterOptions(TypedDict, total=False):
    """Where a cluster is found without the address of a peer, and the credential for it."""

    zookeeper: str | None
    cluster: str
    token: str | None


CLUSTER: ClusterOptions = {"zookeeper": None, "cluster": "main", "token": None}


def _client(call: Callable[..., Any], connect: str | None, given: ClusterOptions) -> Client:
    where = known(given, call, CLUSTER)
    return Client(peers(connect, where["zookeeper"], where["cluster"]), token=where["token"])


@takes(ClusterOptions, CLUSTER)
def gc(connect: str | None = None, **where: Unpack[ClusterOptions]) -> GcReport:
    """Take a snapshot and trim the log before it, through any peer; return once it is trimmed.

    Raises `Unavailable` or `TimedOut`.
    """
    with _client(gc, connect, where) as client:
        found = client.call("gc", {}, timeout_ms=GC_TIMEOUT_MS)
    return GcReport(found["position"], found["trimmed"], found["origin_bytes"])


@takes(ClusterOptions, CLUSTER)
def submit_entry(
    entry: str,
    args: Mapping[str, Any] | Sequence[Any] | None = None,
    connect: str | None = None,
    **where: Unpack[ClusterOptions],
) -> Submitted:
    """Append an entry of an extension to the log, through any peer; see `Client.submit_entry`."""
    with _client(submit_entry, connect, where) as client:
        return client.submit_entry(entry, args)


@takes(ClusterOptions, CLUSTER)
def extension(
    name: str, connect: str | None = None, *, seen: int | None = None, **where: Unpack[ClusterOptions]
) -> Any:
    """Return the state of an extension, not older than the position ``seen``; raise `NotFound`."""
    with _client(extension, connect, where) as client:
        return client.extension(name, seen=seen)


@takes(ClusterOptions, CLUSTER)
def submit(
    job: Job,
    connect: str | None = None,
    *,
    keep_ms: Milliseconds | None = None,
    importable: bool = True,
    replace: bool = False,
    **where: Unpack[ClusterOptions],
) -> str:
    """Submit a job and return its id; to submit the same job again under its id changes nothing.

    See `Client.submit_job`. Raises `BadRequest` naming the key at fault, `JobConflict` for another job under the id, or
    `Unavailable`.
    """
    with _client(submit, connect, where) as client:
        return client.submit_job(job, keep_ms=keep_ms, importable=importable, replace=replace)


@takes(ClusterOptions, CLUSTER)
def kill(job_id: str, connect: str | None = None, **where: Unpack[ClusterOptions]) -> dict[str, Any]:
    """End a job and discard its uncommitted work.

    Raises `NotFound`, or `Conflict` if it has already ended.
    """
    with _client(kill, connect, where) as client:
        return client.kill_job(job_id)


@takes(ClusterOptions, CLUSTER)
def jobs(
    connect: str | None = None, *, state: JobState | None = None, **where: Unpack[ClusterOptions]
) -> Sequence[dict[str, Any]]:
    """Return the jobs that the cluster remembers, of one state if given; running jobs first."""
    with _client(jobs, connect, where) as client:
        return client.jobs(state)


@takes(ClusterOptions, CLUSTER)
def job(job_id: str, connect: str | None = None, **where: Unpack[ClusterOptions]) -> dict[str, Any]:
    """Return one job: its state, its definition, and its progress; raise `NotFound`."""
    with _client(job, connect, where) as client:
        return client.job(job_id)


@takes(ClusterOptions, CLUSTER)
def wait(
    job_id: str, connect: str | None = None, *, timeout: Seconds | None = None, **where: Unpack[ClusterOptions]
) -> JobOutcome:
    """Wait for a job to end and return how it ended; return at once if it has ended already.

    ``timeout``: longest wait, in seconds or as text such as ``"10m"``; default: a day. Raises `TimedOut` or `NotFound`.
    """
    wait_ms = WAIT_MS if timeout is None else round(as_seconds(timeout, "timeout") * 1000)
    with _client(wait, connect, where) as client:
        return client.wait_job(job_id, wait_ms)


@takes(ClusterOptions, CLUSTER)
def seal(job_id: str, input: str, connect: str | None = None, **where: Unpack[ClusterOptions]) -> dict[str, Any]:
    """Seal an input: it gets no more data. The job completes once it has read all there is.

    Raises `NotFound`, `BadRequest` if the job has no such input, `Conflict` if the job has ended.
    """
    with _client(seal, connect, where) as client:
        return client.seal_job(job_id, input)


def subscribe(
    start: int | None = None,
    connect: str | None = None,
    *,
    zookeeper: str | None = None,
    cluster: str = "main",
    token: str | None = None,
) -> Iterator[Event]:
    """Yield every log entry from position ``start`` (default: from now) on, for ever.

    Each item is ``(position, entry, verdict, diff)``: the entry (its ``str`` is a sentence), its verdict, and all
    changes of the replica since the item before, as a tuple of `onyxq.core.diff.Change`. The subscription continues
    when peers die and connections break. If the records that it needs are trimmed, it yields an entry ``set_replica``
    with the difference to the snapshot, and continues after that. No record holds this entry.

    Raises `Unavailable` if no peer can be reached at the start, and `OlderThanCluster` at an entry that is not
    installed here.
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
    """Open a subscription on trio or asyncio; see `subscribe`::

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
    """Pauses before a request is repeated; an error before the first answer is raised at once."""

    def __init__(self) -> None:
        self._pause_s: float | None = None

    def answered(self, answer: Any) -> Any:
        """Return the answer; from now on temporary errors are retried."""
        self._pause_s = following.PAUSE_FIRST_S
        return answer

    def after(self, error: OnyxqError) -> float:
        """Return the seconds to wait before a retry; raise the error if there was no answer yet."""
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
    """Return addresses of peers to try in turn; blocks if ZooKeeper is asked.

    ``connect``: one or several comma-separated ``HOST:PORT``. The credentials for ZooKeeper come from
    ``ONYXQ_ZOOKEEPER_AUTH`` and related variables. Raises `BadRequest` if both are given, and the errors of
    `onyxq.log.zookeeper_pulses.addresses`.
    """
    if zookeeper is None:
        return [one.strip() for one in (connect or ADDRESS).split(",")]
    if connect is not None:
        raise BadRequest("give either connect or zookeeper", field="zookeeper")
    from onyxq.log.zookeeper_pulses import addresses  # kazoo is loaded only if it is needed

    shown = {name: os.environ.get(f"ONYXQ_ZOOKEEPER_{name.upper()}", "") for name in ("auth", "ca", "cert", "key")}
    return addresses(zookeeper, cluster, ZookeeperCredentials(**shown))
