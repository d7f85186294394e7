"""Transports of callbacks: ``http``, ``tcp``, and transports of other installed distributions.

A distribution names its transports in the entry point group ``onyxq.transports``, each as
``NAME = module:function``.  The function is async, takes a `Delivery`, and returns when the receiver has it.
If it raises, the attempt has failed.  It runs on trio in the process of the peer, must not block, and is
cancelled at the timeout.  Allowed targets are checked for ``http`` and ``tcp`` only.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.core.errors import BadExtension, BadRequest
from onyxq.core.timer_model import Callback, Delivery
from onyxq.interfaces.callbacks import http_callback, tcp_callback
from onyxq.interfaces.callbacks.targets import Resolver, Targets

GROUP = "onyxq.transports"
OWN = MappingProxyType({"http": http_callback, "tcp": tcp_callback})
"""OnyxQ's own transports: modules with ``deliver`` and ``place``."""

Deliver: TypeAlias = Callable[[Delivery], Awaitable[Any]]
"""If it returns a number, that is stored as the status of the answer."""
Place: TypeAlias = tuple[str, int]


@frozen
class Transport:
    """One transport of callbacks."""

    deliver: Deliver
    place: Callable[[Callback], Place] | None = None
    """Returns host and port of a callback; raises `BadRequest`. None: they are not known."""


class Transports:
    """All transports of this peer, by name."""

    def __init__(self, allowed: Targets, others: Mapping[str, Deliver] | None = None) -> None:
        self._resolver = Resolver(allowed)
        self._all = {name: Transport(deliver) for name, deliver in (others or {}).items()}
        for name, module in OWN.items():
            self._all[name] = Transport(partial(module.deliver, self._resolver), module.place)

    def __getitem__(self, name: str) -> Transport:
        """Return the transport of a name; raises `BadRequest`."""
        if name not in self._all:
            known = ", ".join(sorted(self._all))
            raise BadRequest(f"there is no transport {name!r}; this peer has {known}", field="callback.transport")
        return self._all[name]

    async def check(self, callback: Callback) -> None:
        """Raise `BadRequest` if a callback is invalid or its target is not allowed.

        A host name that does not resolve now is accepted, because it may resolve later.
        """
        place = self[callback.transport].place
        if place is None:
            return
        host, port = place(callback)
        await self._resolver.check(host, port)

    def lane(self, callback: Callback) -> str:
        """Return the lane of a callback: its receiver."""
        transport = self._all.get(callback.transport)
        if transport is None or transport.place is None:
            return callback.transport
        try:
            host, port = transport.place(callback)
        except BadRequest:
            return callback.transport
        return f"{host}:{port}"


def installed() -> dict[str, Deliver]:
    """Return the transports of installed distributions; raises `BadExtension`."""
    return loaded(entry_points(group=GROUP))


def loaded(points: Iterable[EntryPoint]) -> dict[str, Deliver]:
    """Return the transports of entry points; raises `BadExtension`."""
    found: dict[str, Deliver] = {}
    for point in sorted(points, key=lambda one: (one.name, one.value)):
        place = f"transport {point.name} = {point.value}"
        if point.name in OWN or point.name in found:
            raise BadExtension(f"{place}: there is another transport of this name")
        try:
            function = point.load()
        except Exception as error:
            raise BadExtension(f"{place} cannot be loaded: {error!r}") from error
        if not inspect.iscoroutinefunction(function):
            raise BadExtension(f"{place} must be an async function of one argument, the delivery")
        found[point.name] = function
    return found
