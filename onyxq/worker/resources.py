"""What an application's functions share: opened when a worker starts, passed to functions, closed when it ends.

A resource is a generator function with one ``yield``. What it yields is the value of each parameter whose default is
the resource. Middleware has the same form, but runs around each attempt (design: interfaces).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Generic, TypeAlias, TypeVar

from onyxq.core.errors import BadRequest

T = TypeVar("T")

Around = Callable[[Callable[[], AbstractAsyncContextManager[Any]]], AbstractAsyncContextManager[Any]]
"""Function that makes a context manager of the user's; tests let it be entered in another event loop."""
Middleware: TypeAlias = Callable[[], AsyncIterator[None] | Iterator[None]]
"""Function with one ``yield`` that runs around each attempt."""


class Resource(Generic[T]):
    """A value that each worker, and each of its processes, opens once."""

    def __init__(self, make: Callable[[], AsyncIterator[T] | Iterator[T]]) -> None:
        self.name = getattr(make, "__qualname__", repr(make))
        self._open_async: Callable[[], AbstractAsyncContextManager[T]] | None = None
        self._open: Callable[[], AbstractContextManager[T]] | None = None
        if inspect.isasyncgenfunction(make):
            self._open_async = asynccontextmanager(make)
        elif inspect.isgeneratorfunction(make):
            self._open = contextmanager(make)
        else:
            raise BadRequest("a resource is a function that yields its value once", field="function")

    @property
    def is_async(self) -> bool:
        """Whether it needs an event loop, which processes do not have."""
        return self._open is None

    async def open(self, stack: AsyncExitStack, around: Around) -> T:
        """Open it and return its value; the stack closes it."""
        found: T = await stack.enter_async_context(around(self._open_async or self._opened))
        return found

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[T]:
        """Open it although it is not async."""
        with ExitStack() as stack:
            yield self.open_blocking(stack)

    def open_blocking(self, stack: ExitStack) -> T:
        """Open it and return its value; raise `BadRequest` if it is async."""
        if self._open is None:
            raise BadRequest(f"the resource {self.name} is async: a function in a process cannot use it")
        return stack.enter_context(self._open())

    def __repr__(self) -> str:
        return f"<resource {self.name}, opened by workers>"


class Opened:
    """The resources that one worker has opened."""

    def __init__(self, resources: Iterable[Resource[Any]], stack: AsyncExitStack, around: Around) -> None:
        self._resources = list(resources)
        self._stack = stack
        self._around = around
        self._values: dict[Resource[Any], Any] = {}

    async def open(self) -> None:
        """Open them, in the order in which they were declared."""
        for resource in self._resources:
            self._values[resource] = await resource.open(self._stack, self._around)

    def of(self, wanted: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """Return the values of a function's parameters; raise `BadRequest` for a resource of another application."""
        for name, resource in wanted.items():
            if resource not in self._values:
                raise BadRequest(f"{name}: the resource {resource.name} is not one of this application", field=name)
        return {name: self._values[resource] for name, resource in wanted.items()}


class OpenedBlocking:
    """The resources that one process of a worker has opened, each at its first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._values: dict[Resource[Any], Any] = {}

    def of(self, wanted: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """Return the values of a function's parameters."""
        for resource in wanted.values():
            if resource not in self._values:
                self._values[resource] = resource.open_blocking(self._stack)
        return {name: self._values[resource] for name, resource in wanted.items()}

    def close(self) -> None:
        """Close them, the last one first."""
        self._stack.close()


def used_by(signature: inspect.Signature) -> dict[str, Resource[Any]]:
    """Return the resource of each parameter that has one as its default."""
    found = ((name, parameter.default) for name, parameter in signature.parameters.items())
    return {name: default for name, default in found if isinstance(default, Resource)}


def middleware_of(function: Middleware) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Return what wraps an attempt; raise `BadRequest` if the function does not yield."""
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)
    if not inspect.isgeneratorfunction(function):
        raise BadRequest("middleware is a function that yields once, async or not", field="function")
    plain = contextmanager(function)

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        with plain():
            yield

    return around
