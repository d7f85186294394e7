"""Sources of log records: the log of a peer and archives, as one history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.log.interface import START, Record
from onyxq.history.archive import Part, parts
from onyxq.history.dump import Dump
from onyxq.history.following import ask, drive, origin, records
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.client import Client


def end_of(client: Client) -> int:
    """Return the position up to which the peer has read the log."""
    return int(client.call("cluster", {})["position"])


def live(client: Client, cluster: dict[str, Any], *, from_beginning: bool = False) -> Part:
    """Return the log of a peer as a part of the history."""
    packed = b"" if from_beginning else ask(origin(), client.call)
    start = snapshot.unpack(packed) if packed else None
    after = START if start is None else start.position
    dump = Dump(cluster["name"] or "", start, _LiveRecords(client, after), cluster["id"] or "")
    return Part(after, None, dump)


@frozen
class _LiveRecords:
    """Records after a position, up to the end of the log when the iteration starts."""

    client: Client
    after: int

    def __iter__(self) -> Iterator[Record]:
        end = end_of(self.client)
        return drive(records(self.after + 1, end), self.client.call)


def pieces(context: Context, client: Client) -> list[Part]:
    """Return the log of the peer and the archives of ``--archive``."""
    return [live(client, client.call("cluster", {})), *parts(map(Path, context.args.archive or ()))]
