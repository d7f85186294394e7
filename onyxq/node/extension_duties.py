"""Extensions within a node: their duties, run and restarted, and the methods for clients.

A core duty that fails ends the peer; an extension's duty never does. It is started again with growing pauses.
After `FAILURES_MAX` failures in a row it stops until its peer, or the duty, starts again.
"""

from __future__ import annotations

import logging
from typing import Any

import attrs
import trio
from pyrsistent import PMap

from onyxq.core.duties import Extended
from onyxq.core.entry import Entry, Malformed, Verdict, decode_args, named_args
from onyxq.core.errors import BadRequest, Forbidden, LogUnavailable, NotFound, Unknown
from onyxq.core.extensions import NOTHING
from onyxq.core.log.interface import START
from onyxq.core.replica import Replica
from onyxq.node.node import Node
from onyxq.operations.table.log import ExtensionState, GetExtension, SubmitEntry, Submitted
from onyxq.system.extensions import Context

FAILURES_MAX = 10
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""Seconds after which a run counts as successful: a later failure begins a new series."""
SEEN_TIMEOUT_S = 5.0
LOG_RETRY_S = 0.5

log = logging.getLogger(__name__)


class RunContext:
    """The context of a duty's ``run``; see `onyxq.system.extensions.Context`."""

    def __init__(self, node: Node, *, peer: str, entry: Entry) -> None:
        self.me = peer
        self.log = logging.getLogger(f"onyxq.extension.{entry.name}")
        self._node = node
        self._extension = entry.extension

    @property
    def replica(self) -> Replica:
        """The replica as the peer knows it now."""
        return self._node.replica

    async def changed(self) -> Replica:
        """Return the replica after the next record of the log."""
        await self._node.moved()
        return self._node.replica

    async def submit(self, args: Any) -> Verdict:
        """Append an entry of the extension and return its verdict.

        Wait while the log is unavailable. Raises `LogUnavailable` if the verdict is not known in time,
        `NotEnabled`, `TooLarge`.
        """
        found = self._node.entries.of(args)
        if found is None or found.extension != self._extension:
            raise BadRequest(
                f"{type(args).__module__}.{type(args).__qualname__} is not an entry of the extension {self._extension}",
                hint="Submit the Args of one of the extension's own entries.",
            )
        while not self._node.can_submit():
            await trio.sleep(LOG_RETRY_S)
        _, verdicts = await self._node.verdicts([args])
        return verdicts[0]

    def let_time_pass(self) -> None:
        """Write a record soon, so that log time moves.

        Does nothing while the log is unavailable.
        """
        outbox = self._node.outbox
        if outbox is not None and not outbox.closed:
            outbox.submit_empty()

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await trio.sleep(seconds)

    def wall_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch."""
        return self._node.wall_ms()


async def supervise(node: Node, peer: str, duty: Extended) -> None:
    """Run a duty until it is cancelled, returns, or failed too often."""
    entry = node.entries[duty.entry]
    assert entry.run is not None, "only entries with run have duties"
    context: Context = RunContext(node, peer=peer, entry=entry)
    failures, pause_s = 0, PAUSE_FIRST_S
    while True:
        began = trio.current_time()
        try:
            await entry.run(duty.value, context)
            return
        except Exception:
            if trio.current_time() - began > STEADY_S:
                failures, pause_s = 0, PAUSE_FIRST_S
            failures += 1
            log.exception("%s: the duty %r failed, %d in a row", entry.name, duty.value, failures)
        if failures >= FAILURES_MAX:
            log.error("%s: the duty %r is given up until its peer starts again", entry.name, duty.value)
            return
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


class Extending:
    """The methods ``submit`` and ``extension`` of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def submit(self, args: SubmitEntry) -> Submitted:
        """Append an entry of an extension, and return its position and verdict.

        Raises `NotFound`, `Forbidden`, `BadRequest` that names the
        argument, `NotEnabled`, `Unavailable`, and `Unknown` if the entry may have been appended.
        """
        entry = self._submitted(args.entry)
        typed = _typed(entry, args.args)
        self._node.outbox_now()
        try:
            position, verdicts = await self._node.verdicts([typed])
        except LogUnavailable as error:
            raise Unknown(f"{entry.name}: {error.message}", hint="Look at the extension's state.") from error
        return Submitted(position=position, verdict=verdicts[0])

    def _submitted(self, name: str) -> Entry:
        entry = self._node.entries.get(name)
        if entry is None:
            raise NotFound(f"no entry {name!r} is installed here", field="entry")
        if not entry.submitted:
            raise Forbidden(
                f"{name} is not submitted by clients",
                field="entry",
                hint="To allow it, set SUBMIT = True in the entry's module.",
            )
        return entry

    async def extension(self, args: GetExtension) -> ExtensionState:
        """Return the state of an extension and the position of its replica.

        ``seen``: wait until the replica is at that position. Raises `Unavailable` if it is not within 5 s, and
        `NotFound` if the name is not installed and has no state.
        """
        node, name, seen = self._node, args.name, START if args.seen is None else args.seen
        if name not in node.replica.extensions and name not in {one.extension for one in node.entries.values()}:
            raise NotFound(f"there is no extension {name!r}", field="name")
        with trio.move_on_after(SEEN_TIMEOUT_S):
            while node.replica.position < seen:
                await node.moved()
        replica = node.replica
        if replica.position < seen:
            raise LogUnavailable(f"this peer has read the log up to {replica.position} only")
        return ExtensionState(position=replica.position, state=_native(replica.extensions.get(name, NOTHING)))


def _native(value: Any) -> Any:
    """Return a state as types that msgpack can hold."""
    if isinstance(value, PMap):
        return {key: _native(value[key]) for key in sorted(value)}
    return [_native(item) for item in value] if isinstance(value, tuple) else value


def _typed(entry: Entry, given: Any) -> Any:
    try:
        return named_args(entry.args, given) if isinstance(given, dict) else decode_args(entry.args, given)
    except Malformed as error:
        said = str(error).partition(":")[0]
        known = said in {item.name for item in attrs.fields(entry.args)} or (isinstance(given, dict) and said in given)
        raise BadRequest(f"{entry.name}: {error}", field=said if known else "args") from None
