"""The client for plain threads: `AsyncClient` run by an event loop in the background."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from onyxq.client.asynchronous import ADDRESS, TIMEOUT_MS, AsyncClient
from onyxq.errors import Unavailable
from onyxq.wire.network import Network

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        portal, client = self._opened()
        result: R = portal.call(functools.partial(method, client, *args, **kwargs))
        return result

    return call


class Client:
    """A connection with a cluster: ``with Client("HOST:PORT") as client``; threads may share it.

    The calls are those of `AsyncClient`.
    """

    def __init__(
        self,
        address: str | Sequence[str] = ADDRESS,
        *,
        token: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
        network: Network | None = None,
        backend: str = "asyncio",
    ) -> None:
        self._client = AsyncClient(address, token=token, timeout_ms=timeout_ms, network=network)
        self._backend = backend
        self._portal: BlockingPortal | None = None
        self._stack = ExitStack()

    def open(self) -> Client:
        """Start the background thread; ``with`` does it by itself."""
        if self._portal is None:
            self._portal = self._stack.enter_context(start_blocking_portal(self._backend))
            self._stack.enter_context(self._portal.wrap_async_context_manager(self._client))
        return self

    def close(self) -> None:
        """End the connections and the background thread; calls in other threads fail."""
        self._portal = None
        self._stack.close()

    def __enter__(self) -> Client:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> tuple[BlockingPortal, AsyncClient]:
        if self._portal is None:
            raise Unavailable("the client is not open", hint="Use it in a with block, or call open().")
        return self._portal, self._client

    enqueue = _blocking(AsyncClient.enqueue)
    enqueue_many = _blocking(AsyncClient.enqueue_many)
    make_ids = _blocking(AsyncClient.make_ids)
    get = _blocking(AsyncClient.get)
    task_log = _blocking(AsyncClient.task_log)
    cancel = _blocking(AsyncClient.cancel)
    claim = _blocking(AsyncClient.claim)
    update = _blocking(AsyncClient.update)
    renew = _blocking(AsyncClient.renew)
    complete = _blocking(AsyncClient.complete)
    fail = _blocking(AsyncClient.fail)
    release = _blocking(AsyncClient.release)
    count = _blocking(AsyncClient.count)
    list = _blocking(AsyncClient.list)
    queues = _blocking(AsyncClient.queues)
    cluster = _blocking(AsyncClient.cluster)
    ring = _blocking(AsyncClient.ring)
    partitions = _blocking(AsyncClient.partitions)
    peers = _blocking(AsyncClient.peers)
    health = _blocking(AsyncClient.health)
    log = _blocking(AsyncClient.log)
    submit_entry = _blocking(AsyncClient.submit_entry)
    extension = _blocking(AsyncClient.extension)
    gc = _blocking(AsyncClient.gc)
    leave = _blocking(AsyncClient.leave)
    call = _blocking(AsyncClient.call)
