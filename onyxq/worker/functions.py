"""Functions as tasks: calls are stored as JSON, by name and arguments (design: interfaces)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from onyxq.client import AsyncClient, Step
from onyxq.client.transactions import Gathered
from onyxq.core.errors import BadRequest
from onyxq.system.durations import Milliseconds
from onyxq.worker.arguments import Arguments
from onyxq.worker.attempts import Progress
from onyxq.worker.handles import Application, Called, Reach, TaskHandle, unknown_name
from onyxq.worker.options import Changes, Options

P = ParamSpec("P")
R = TypeVar("R")

ELSEWHERE = {
    **dict.fromkeys(("delay", "send", "defer"), "enqueue(...)"),
    "apply_async": 'enqueue(...), or options(delay="10s").enqueue(...)',
}
"""Names that tasks have in other task queues, and what they are called here."""

Call = tuple[Any, ...] | Mapping[str, Any]
"""The arguments of one call: by position, or by name."""


class TaskFunction(Generic[P, R]):
    """A function of an application: call it, or enqueue a call of it. ``R`` is what the task results in."""

    def __init__(self, app: Application, function: Callable[P, Any], *, name: str, options: Options) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self.app = app
        self._options = options
        self._called_with = options
        """The options that a worker knows without the task's data."""
        self.arguments = Arguments(function, name)
        self._called: Called[R] = Called(name, self.arguments, Reach(app))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    if not TYPE_CHECKING:  # type checkers must find wrong names

        def __getattr__(self, name: str) -> Any:
            raise unknown_name(self, name, ELSEWHERE)

    @property
    def queue(self) -> str:
        """The queue of its tasks."""
        return self._options.queue

    def options(self, **changes: Unpack[Changes]) -> Self:
        """Return the same function with other options: ``send.options(delay_ms="5s").enqueue(...)``.

        Raises `BadRequest` naming the option that is unknown or wrong.
        """
        options = self._options.changed(changes)
        options.check(self.function)
        made = type(self)(self.app, self.function, name=self.name, options=options)
        made._called_with = self._called_with
        return made

    # --- enqueueing

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Enqueue a call of the function and return its handle, which is also the task's id.

        Inside of a worker the worker's connection is used, unless the application was given another address. Raises
        `BadRequest` naming the argument that does not fit.
        """
        payload = self.payload(*args, **kwargs)
        reach = self._called.reach
        now_ms = reach.call(AsyncClient.now_ms) if self._options.needs_now else None
        options = self._how(args, kwargs, now_ms)
        return self.handle(reach.call(AsyncClient.enqueue, self.queue, payload, **options))

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Enqueue a call from async code; see `enqueue`."""
        payload = self.payload(*args, **kwargs)
        reach = self._called.reach
        now_ms = await reach.call_async(AsyncClient.now_ms) if self._options.needs_now else None
        options = self._how(args, kwargs, now_ms)
        return self.handle(await reach.call_async(AsyncClient.enqueue, self.queue, payload, **options))

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskHandle[R]]:
        """Enqueue many calls in few requests and return their handles in the same order.

        Each call is a tuple of arguments or a mapping of their names: ``send.enqueue_many([("ann", "hello"), ...])``.
        All calls are checked before the first is sent. Raises `BadRequest` naming the call and the argument.
        """
        payloads, bound = self._many(calls)
        reach = self._called.reach
        now_ms = reach.call(AsyncClient.now_ms) if self._options.needs_now else None
        options = self._options.of_calls(bound, now_ms)
        ids = reach.call(AsyncClient.enqueue_many, self.queue, payloads, **options) if payloads else []
        return [self.handle(one) for one in ids]

    async def enqueue_many_async(self, calls: Iterable[Call]) -> list[TaskHandle[R]]:
        """Enqueue many calls from async code; see `enqueue_many`."""
        payloads, bound = self._many(calls)
        reach = self._called.reach
        now_ms = await reach.call_async(AsyncClient.now_ms) if self._options.needs_now else None
        options = self._options.of_calls(bound, now_ms)
        ids = await reach.call_async(AsyncClient.enqueue_many, self.queue, payloads, **options) if payloads else []
        return [self.handle(one) for one in ids]

    def enqueue_in(self, transaction: Gathered, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue a call as part of a transaction."""
        transaction.enqueue(self.queue, self.payload(*args, **kwargs), **self._how(args, kwargs, None))

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return a call as a step of a chain or a group: ``app.chain(fetch.s(url), index.s(url)).enqueue()``."""
        return Step(self.queue, self.payload(*args, **kwargs), **self._how(args, kwargs, None))

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Return the call as it is stored; raise `BadRequest` naming the argument that does not fit."""
        timeout_s = self._options.timeout_s
        more = {} if timeout_s == self._called_with.timeout_s else {"timeout_s": timeout_s}
        return self.arguments.call(args, kwargs, **more)

    def _how(self, args: Any, kwargs: Any, now_ms: int | None) -> dict[str, Any]:
        return self._options.arguments(functools.partial(self.arguments.named, args, kwargs), now_ms)

    def _many(self, calls: Iterable[Call]) -> tuple[list[bytes], list[Callable[[], inspect.BoundArguments]]]:
        payloads: list[bytes] = []
        bound: list[Callable[[], inspect.BoundArguments]] = []
        for place, call in enumerate(calls):
            args, kwargs = _arguments_of(call, place)
            try:
                payloads.append(self.payload(*args, **kwargs))
            except BadRequest as error:
                raise BadRequest(f"call {place}: {error.message}", field=f"calls[{place}].{error.field}") from None
            bound.append(functools.partial(self.arguments.named, args, kwargs))
        return payloads, bound

    # --- looking

    def handle(self, id: bytes | str) -> TaskHandle[R]:
        """Return the handle of a call that was enqueued before, perhaps by another process; the id is not looked up."""
        return TaskHandle(id, self._called)

    def result(self, id: bytes | str, *, wait_ms: Milliseconds = 0) -> R:
        """Return the result of a call; wait up to ``wait_ms`` for it. Raises as `TaskHandle.result` does."""
        return self._called.returned(self._called.reach.call(AsyncClient.wait, id, wait_ms))

    async def result_async(self, id: bytes | str, *, wait_ms: Milliseconds = 0) -> R:
        """Return the result of a call; see `result`."""
        return self._called.returned(await self._called.reach.call_async(AsyncClient.wait, id, wait_ms))

    def progress(self, id: bytes | str) -> Progress | None:
        """Return the latest progress of a call; None if it reported none."""
        return self.handle(id).progress()

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self.queue!r}>"


AnyTask = TaskFunction[..., Any]


class AsyncTaskFunction(TaskFunction[P, R]):
    """A `TaskFunction` whose function is async."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        made: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return made


class BlockingTaskFunction(TaskFunction[P, R]):
    """A `TaskFunction` whose function is not async."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        made: R = self.function(*args, **kwargs)
        return made


class TaskDecorator(Protocol):
    """A decorator that makes a function a task."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine is also a value
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTaskFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> BlockingTaskFunction[P, R]: ...


def task_function(
    app: Application, function: Callable[..., Any], name: str, options: Options
) -> TaskFunction[..., Any]:
    """Return a function as a task, of the class that fits it."""
    made = AsyncTaskFunction if inspect.iscoroutinefunction(function) else BlockingTaskFunction
    return made(app, function, name=name, options=options)


def _arguments_of(call: Call, place: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(call, Mapping):
        return (), dict(call)
    if isinstance(call, tuple):
        return call, {}
    raise BadRequest(
        f"call {place} must be a tuple of arguments or a mapping of names, not {type(call).__name__}",
        field=f"calls[{place}]",
        hint="For functions of one argument write tuples of one item: [(path,) for path in paths].",
    )
