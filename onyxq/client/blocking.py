"""The client for plain threads: an `AsyncClient` in the event loop of a background thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from threading import Lock, Thread
from types import MethodType, TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import sniffio
from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal

from onyxq.access.certificates import Certificates
from onyxq.client.asynchronous import ADDRESS, TIMEOUT_MS, AsyncClient
from onyxq.client.claims import ClaimBatch
from onyxq.client.flow_calls import FlowHandle
from onyxq.client.flows import Enqueued, Flow, Part, Step, chain, group
from onyxq.client.management import PAGE_TASKS
from onyxq.client.options import check_call
from onyxq.client.taskstore import TaskStore
from onyxq.client.transactions import BlockingTransaction, Committed, Gathered
from onyxq.client.values import Task
from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.core.ids import TaskId
from onyxq.operations.table.task import State
from onyxq.system.durations import Milliseconds, Timeout
from onyxq.wire.network import Network

P = ParamSpec("P")
R = TypeVar("R")


AsyncMethod = Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]
"""A method of `AsyncClient`."""


def _blocking(method: AsyncMethod[P, R]) -> Callable[Concatenate[Client, P], R]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self._run(functools.partial(method, self._opened(), *args, **kwargs))
        except TypeError:
            # An argument that does not exist shows in the other thread only, as that of another class.
            check_call(MethodType(call, self), args, kwargs)  # a subclass may have another call of the name
            raise

    return call


class _Handover:
    """A call between the background thread and its caller, who may be gone when the claims come that it asked for."""

    def __init__(self) -> None:
        self.scope: CancelScope | None = None
        """Scope of the call once it has begun; used by the background thread only."""
        self.left = False
        """Whether the caller is gone."""
        self._lock = Lock()
        self._claims: ClaimBatch | None = None

    def offer(self, claims: ClaimBatch) -> bool:
        """Keep claims for the caller; return False if it is gone."""
        with self._lock:
            self._claims = claims
            return not self.left

    def leave(self) -> ClaimBatch | None:
        """Note that the caller is gone; return the claims that it was offered."""
        with self._lock:
            self.left = True
            return self._claims


class Client:
    """A connection with a cluster: ``with Client("HOST:PORT") as client``; threads may share it.

    The calls are those of `AsyncClient`, and wait for the answer. Ctrl-C cancels the call that it interrupts.
    """

    def __init__(
        self,
        address: str | Sequence[str] = ADDRESS,
        *,
        token: str | None = None,
        tls: Certificates | None = None,
        timeout_ms: Milliseconds = TIMEOUT_MS,
        connect_timeout_ms: Timeout = None,
        network: Network | None = None,
        backend: str = "asyncio",
    ) -> None:
        self._client = AsyncClient(
            address,
            token=token,
            tls=tls,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            network=network,
        )
        self._backend = backend
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()
        self._under_way: set[CancelScope] = set()
        """One scope for each call in progress."""
        self._closing = False
        """Used by the background thread only: calls that arrive from now on are too late."""

    def open(self) -> Client:
        """Start the background thread; ``with`` does so automatically."""
        if self._portal is None:
            self._closing = False
            try:
                self._portal = self._started()
                self._stack.enter_context(self._portal.wrap_async_context_manager(self._entered()))
            except BaseException:
                self.close()
                raise
        return self

    def _entered(self) -> AbstractAsyncContextManager[Any]:
        """Return the context manager that is open as long as this client is."""
        return self._client

    def _started(self) -> BlockingPortal:
        """Start the portal in another thread. Ctrl-C during start-up would otherwise deadlock."""
        stack, opening = self._stack, Future[BlockingPortal]()

        def start() -> None:
            try:
                portal = stack.enter_context(start_blocking_portal(self._backend))
            except BaseException as error:
                opening.set_exception(error)
            else:
                if opening.set_running_or_notify_cancel():
                    opening.set_result(portal)
                else:
                    stack.close()

        try:
            Thread(target=start, daemon=True).start()
            return opening.result()
        except BaseException:
            opening.cancel()  # the other thread then closes it, or else the caller does
            raise

    def close(self) -> None:
        """End the connections and the background thread; calls in other threads raise `Unavailable`."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.call(self._end_calls)
        self._stack.close()

    def _end_calls(self) -> None:
        self._closing = True
        for scope in self._under_way:
            scope.cancel()

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Return the result of an asynchronous call; raise `Unavailable` if this client is closed before the answer.

        If the wait is interrupted, for example by Ctrl-C, the call is cancelled.
        """
        portal, handover = self._portal, _Handover()
        future: Future[R] | None = None
        failure: OnyxqError | None = None
        try:
            if portal is not None:
                future = portal.start_task_soon(self._until_closed, call, handover)
                return future.result()
        except OnyxqError as error:
            # The frames of the other thread's event loop say nothing to the caller.
            failure = error.with_traceback(None)
        except RuntimeError:
            if self._portal is portal:
                raise
        except BaseException:
            self._abandon(portal, future, handover)
            raise
        raise failure or _not_open()

    async def awaited(self, method: AsyncMethod[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of `AsyncClient` from async code on any event loop, and do not block it.

        ``await client.awaited(AsyncClient.get, id)``. A cancelled wait cancels the call.
        """
        portal = self._portal
        if portal is None:
            raise _not_open()
        call, handover = functools.partial(method, self._client, *args, **kwargs), _Handover()
        try:
            future: Future[R] = portal.start_task_soon(self._until_closed, call, handover)
        except RuntimeError:
            raise _not_open() from None
        try:
            await _done(future)
        except BaseException:
            self._abandon(portal, future, handover)
            raise
        failure = future.exception()
        if isinstance(failure, OnyxqError):
            raise failure.with_traceback(None)
        return future.result()

    def _abandon(self, portal: BlockingPortal | None, future: Future[R] | None, handover: _Handover) -> None:
        """Cancel a call whose caller is gone; give back the claims that it may have got already.

        ``future``: that of the call; None if the caller was interrupted while it began.
        """
        claims = handover.leave()
        if future is not None:
            future.cancel()
        if portal is not None and (future is None or claims):
            with suppress(RuntimeError):  # the client is closed
                portal.start_task_soon(self._end_abandoned, handover, claims)

    def _end_abandoned(self, handover: _Handover, claims: ClaimBatch | None) -> None:
        if handover.scope is not None:
            handover.scope.cancel()
        if claims:
            self._client._give_back(claims)

    async def _until_closed(self, call: Callable[[], Coroutine[Any, Any, R]], handover: _Handover) -> R:
        if self._closing:
            raise _not_open()
        with CancelScope() as scope:
            handover.scope = scope
            if handover.left:
                scope.cancel()
            self._under_way.add(scope)
            try:
                found = await call()
                if isinstance(found, ClaimBatch) and not handover.offer(found):
                    self._client._give_back(found)
                return found
            finally:
                self._under_way.discard(scope)
        raise Unavailable("the client was closed while it waited for the answer")

    def __enter__(self) -> Client:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> AsyncClient:
        if self._portal is None:
            raise _not_open()
        return self._client

    enqueue = _blocking(AsyncClient.enqueue)
    enqueue_many = _blocking(AsyncClient.enqueue_many)
    enqueue_flow = _blocking(AsyncClient.enqueue_flow)

    def chain(self, *parts: Part) -> Flow[Enqueued]:
        """Return a flow of steps that run one after the other; see `AsyncClient.chain`.

        Enqueue it: ``client.chain(Step("a", b"1"), Step("b", b"2")).enqueue()``.
        """
        return chain(self.enqueue_flow, parts)

    def group(self, *parts: Part) -> Flow[Enqueued]:
        """Return a flow of steps that run side by side; see `AsyncClient.group`."""
        return group(self.enqueue_flow, parts)

    def make_flow(
        self,
        flow: Flow[Any],
        *,
        id: bytes | str | None = None,
        name: str | None = None,
        on_done: Step | tuple[str, bytes] | None = None,
        timeout_ms: Timeout = None,
    ) -> FlowHandle:
        """Store the tasks of a flow under one id, and return its handle; see `AsyncClient.make_flow`."""
        make = functools.partial(
            self._opened().make_flow, flow, id=id, name=name, on_done=on_done, timeout_ms=timeout_ms
        )
        return FlowHandle(self._run, self._run(make))

    def flow_handle(self, id: bytes | str) -> FlowHandle:
        """Return the handle of a flow that was made elsewhere."""
        return FlowHandle(self._run, self._opened().flow_handle(id))

    flow = _blocking(AsyncClient.flow)
    flows = _blocking(AsyncClient.flows)
    wait_flow = _blocking(AsyncClient.wait_flow)
    cancel_flow = _blocking(AsyncClient.cancel_flow)
    requeue_flow = _blocking(AsyncClient.requeue_flow)
    results = _blocking(AsyncClient.results)
    make_ids = _blocking(AsyncClient.make_ids)
    get = _blocking(AsyncClient.get)
    wait = _blocking(AsyncClient.wait)
    now_ms = _blocking(AsyncClient.now_ms)
    task_log = _blocking(AsyncClient.task_log)
    next_updates = _blocking(AsyncClient.next_updates)
    late = _blocking(AsyncClient.late)
    cancel = _blocking(AsyncClient.cancel)
    claim = _blocking(AsyncClient.claim)
    update = _blocking(AsyncClient.update)
    renew = _blocking(AsyncClient.renew)
    complete = _blocking(AsyncClient.complete)
    fail = _blocking(AsyncClient.fail)
    release = _blocking(AsyncClient.release)
    give_up = _blocking(AsyncClient.give_up)
    postpone = _blocking(AsyncClient.postpone)
    transact = _blocking(AsyncClient.transact)

    def transaction(self, name: str | None = None, *, timeout_ms: Timeout = None) -> BlockingTransaction:
        """Start a transaction: ``with client.transaction() as tx``; see `AsyncClient.transaction`."""
        client = self._opened()

        def commit(gathered: Gathered) -> Committed:
            return self._run(functools.partial(client.commit, gathered, timeout_ms))

        return BlockingTransaction(commit, name=name, random_name=client.random_name)

    partition_count = _blocking(AsyncClient.partition_count)
    read_bodies = _blocking(AsyncClient.read_bodies)
    prepare_batch = _blocking(AsyncClient.prepare_batch)
    commit_batch = _blocking(AsyncClient.commit_batch)
    all_savepoints = _blocking(AsyncClient.all_savepoints)
    keep_savepoint = _blocking(AsyncClient.keep_savepoint)
    drop_savepoint = _blocking(AsyncClient.drop_savepoint)
    count = _blocking(AsyncClient.count)
    list = _blocking(AsyncClient.list)

    def list_all(self, queue: str | None = None, *, state: State | None = None) -> Iterator[Task]:
        """Yield all tasks in id order, of one queue and state if given; read page by page."""
        after: TaskId | None = None
        while True:
            page = self.list(queue, state=state, after=after, limit=PAGE_TASKS)
            yield from page.tasks
            after = page.after
            if after is None:
                return

    queues = _blocking(AsyncClient.queues)
    queue = _blocking(AsyncClient.queue)
    set_queue = _blocking(AsyncClient.set_queue)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)
    purge_queue = _blocking(AsyncClient.purge_queue)
    dead = _blocking(AsyncClient.dead)
    requeue_dead = _blocking(AsyncClient.requeue_dead)
    discard_dead = _blocking(AsyncClient.discard_dead)
    periodic = _blocking(AsyncClient.periodic)
    periodics = _blocking(AsyncClient.periodics)
    set_periodic = _blocking(AsyncClient.set_periodic)
    remove_periodic = _blocking(AsyncClient.remove_periodic)
    pause_periodic = _blocking(AsyncClient.pause_periodic)
    resume_periodic = _blocking(AsyncClient.resume_periodic)
    set_timer = _blocking(AsyncClient.set_timer)
    timer = _blocking(AsyncClient.timer)
    timers = _blocking(AsyncClient.timers)
    cancel_timer = _blocking(AsyncClient.cancel_timer)
    submit_job = _blocking(AsyncClient.submit_job)
    replay_job = _blocking(AsyncClient.replay_job)
    jobs = _blocking(AsyncClient.jobs)
    job = _blocking(AsyncClient.job)
    wait_job = _blocking(AsyncClient.wait_job)
    seal_job = _blocking(AsyncClient.seal_job)
    kill_job = _blocking(AsyncClient.kill_job)
    savepoint_job = _blocking(AsyncClient.savepoint_job)
    savepoints = _blocking(AsyncClient.savepoints)
    delete_savepoint = _blocking(AsyncClient.delete_savepoint)
    host_job = _blocking(AsyncClient.host_job)
    job_letters = _blocking(AsyncClient.job_letters)
    requeue_job = _blocking(AsyncClient.requeue_job)
    cluster = _blocking(AsyncClient.cluster)
    ring = _blocking(AsyncClient.ring)
    partitions = _blocking(AsyncClient.partitions)
    peers = _blocking(AsyncClient.peers)
    health = _blocking(AsyncClient.health)
    log = _blocking(AsyncClient.log)

    def task_store(self, client_id: int | None = None) -> TaskStore:
        """Return the task store as seen by one of its clients; see `AsyncClient.task_store`."""
        return TaskStore(self._run, self._opened().task_store(client_id))

    submit_entry = _blocking(AsyncClient.submit_entry)
    extension = _blocking(AsyncClient.extension)
    gc = _blocking(AsyncClient.gc)
    leave = _blocking(AsyncClient.leave)
    force_partition = _blocking(AsyncClient.force_partition)
    call = _blocking(AsyncClient.call)


async def _done(future: Future[Any]) -> None:
    """Wait for another thread's future in this event loop; cancel the future if the wait is cancelled."""
    done = anyio.Event()
    soon: Callable[[Callable[[], None]], object]
    if sniffio.current_async_library() == "trio":
        import trio  # loaded already

        soon = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        soon = asyncio.get_running_loop().call_soon_threadsafe

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop has ended, and with it the code that waited
            soon(done.set)

    future.add_done_callback(wake)
    try:
        await done.wait()
    finally:
        future.cancel()


def _not_open() -> Unavailable:
    return Unavailable("the client is not open", hint="Use it in a with block, or call open().")
