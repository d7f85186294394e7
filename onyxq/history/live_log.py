"""The part of the log that a peer has, in the form in which archives and dumps are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.log.interface import START, Record
from onyxq.history.archive import Part
from onyxq.history.dump import Dump
from onyxq.history.following import ask, drive, origin, records

Call: TypeAlias = Callable[[str, dict[str, Any]], Any]
"""Calls a method of a peer, and returns its answer."""


def end_of(call: Call) -> int:
    """Return the position up to which the peer has read the log."""
    return int(call("cluster", {})["position"])


def live(call: Call, *, from_beginning: bool = False) -> Part:
    """Return the log of a peer as a part of the history."""
    cluster = call("cluster", {})
    packed = b"" if from_beginning else ask(origin(), call)
    start = snapshot.unpack(packed) if packed else None
    after = START if start is None else start.position
    dump = Dump(cluster["name"] or "", start, _LiveRecords(call, after), cluster["id"] or "")
    return Part(after, None, dump)


@frozen
class _LiveRecords:
    """Records after a position, up to the end of the log when the iteration starts."""

    call: Call
    after: int

    def __iter__(self) -> Iterator[Record]:
        return drive(records(self.after + 1, end_of(self.call)), self.call)
