"""How callbacks are made: ``http``, ``tcp``, and what others define under the entry point `GROUP`.

A distribution names its transports in the entry point group ``onyxq.transports``, each as
``NAME = module:function``.  What stands there is an async function that takes a `Delivery` and
returns once the receiver has it; whatever it raises fails the attempt.  It runs on trio in the
peer's process and is cancelled when the attempt's time is up: it must not block.  Where it
connects is its own affair, the allow-list is for ``http`` and ``tcp``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.core.errors import BadExtension, BadRequest
from onyxq.core.timer_model import Callback, Delivery
from onyxq.interfaces.callbacks import http_callback, tcp_callback
from onyxq.interfaces.callbacks.targets import Resolver, Targets

GROUP = "onyxq.transports"


Deliver: TypeAlias = Callable[[Delivery], Awaitable[Any]]
"""What it returns, if that is a number, is kept as the status of the answer."""
Place: TypeAlias = tuple[str, int]


@frozen
class Transport:
    """One way to make callbacks."""

    deliver: Deliver
    place: Callable[[Callback], Place] | None = None
    """Host and port to which a callback goes; raises `BadRequest`. None: that is not known."""


class Transports:
    """All ways that there are on this peer, by name."""

    def __init__(self, allowed: Targets, others: Mapping[str, Deliver] | None = None) -> None:
        self._resolver = Resolver(allowed)
        self._all = {name: Transport(deliver) for name, deliver in (others or {}).items()}
        for name, module in (("http", http_callback), ("tcp", tcp_callback)):
            self._all[name] = Transport(partial(module.deliver, self._resolver), module.place)

    def __getitem__(self, name: str) -> Transport:
        """The transport of a name; raises `BadRequest`."""
        if name not in self._all:
            known = ", ".join(sorted(self._all))
            raise BadRequest(f"there is no transport {name!r}; there are {known}", field="callback.transport")
        return self._all[name]

    async def check(self, callback: Callback) -> None:
        """Raise `BadRequest` if a callback cannot be made, or must not go where it would.

        A name that stands for nothing now may do so later.
        """
        place = self[callback.transport].place
        if place is None:
            return
        host, port = place(callback)
        await self._resolver.check(host, port)

    def lane(self, callback: Callback) -> str:
        """What callbacks have in common that wait for each other: where they go."""
        transport = self._all.get(callback.transport)
        if transport is None or transport.place is None:
            return callback.transport
        try:
            host, port = transport.place(callback)
        except BadRequest:
            return callback.transport
        return f"{host}:{port}"


def installed() -> dict[str, Deliver]:
    """The transports that distributions bring; raises `BadExtension`."""
    return loaded(entry_points(group=GROUP))


def loaded(points: Iterable[EntryPoint]) -> dict[str, Deliver]:
    """The same of given entry points."""
    found: dict[str, Deliver] = {}
    for point in sorted(points, key=lambda one: (one.name, one.value)):
        place = f"transport {point.name} = {point.value}"
        if point.name in ("http", "tcp") or point.name in found:
            raise BadExtension(f"{place}: there is a transport of that name already")
        try:
            function = point.load()
        except Exception as error:
            raise BadExtension(f"{place} cannot be loaded: {error!r}") from error
        if not inspect.iscoroutinefunction(function):
            raise BadExtension(f"{place} must be an async function of one argument, the delivery")
        found[point.name] = function
    return found
