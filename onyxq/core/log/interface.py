"""The log as peers see it: one interface for ZooKeeper, embedded and simulated logs.

A `LogSession` is one session of one peer (or tool) with the log.  It appends, reads,
keeps the peer's pulse, watches other pulses and moves the origin.  A session that is
*lost* is over for good: every call raises `SessionLost` and the node opens another.
*Disconnected* is not lost: reads wait, appends raise `AppendUnknown`.
"""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from onyxq.core.errors import LogUnavailable

START = -1
"""Position before the first record."""
SEQUENCE_BITS = 31
"""A position is its segment shifted by so many bits, and the sequence of the record in it."""
SEGMENT_RECORDS = 1 << 30
"""Records after which a segment may be closed: ZooKeeper's sequence is a signed 32-bit number."""


def segment_of(position: int) -> int:
    """Return the segment that a position lies in; 0 for `START`."""
    return max(position, 0) >> SEQUENCE_BITS


def segment_start(segment: int) -> int:
    """Return the position of a segment's first record."""
    return segment << SEQUENCE_BITS


class SessionLost(LogUnavailable):
    """The session expired or was closed; its pulse is gone."""

    code = "session_lost"


class AppendUnknown(LogUnavailable):
    """The connection broke during an append: the record may exist, twice, or not at all."""

    code = "append_unknown"


@frozen
class Record:
    """One record as stored: bytes are decoded by `onyxq.core.log.record`."""

    position: int
    ctime_ms: int
    data: bytes


@frozen
class Trimmed:
    """The position asked for was trimmed; read the origin and go on behind it."""

    origin: int


@frozen
class Origin:
    """The snapshot from which a new reader starts."""

    position: int
    data: bytes
    trimmed: int
    """Everything up to here (inclusive) was deleted from the log."""
    version: int
    """For the pointer's compare-and-set; see `LogSession.store_origin`."""


class LogSession(Protocol):
    """One session with one cluster's log. All methods run in trio."""

    @property
    def connected(self) -> bool:
        """Whether the log can be reached now, as far as is known."""
        ...

    @property
    def connections(self) -> int:
        """Number of times that this session connected. Within one connection the log cannot go back."""
        ...

    async def wait_lost(self) -> None:
        """Return once the session is lost (or closed)."""
        ...

    async def append(self, data: bytes) -> int:
        """Append one record (at most 512 KiB) and return its position.

        Raises `AppendUnknown` when the connection broke, `SessionLost`, `TooLarge`.
        Exactly-once is the outbox's work, not this method's.
        """
        ...

    async def read(self, position: int) -> Record | Trimmed:
        """Return the record at ``position``, waiting until it is written.

        Consecutive calls are served from a window of pipelined gets. Cancellable.
        Where ``position`` is the end of a closed segment the record is the next segment's first.
        """
        ...

    async def look(self, position: int) -> Record | Trimmed | None:
        """Return the record at ``position`` as the log is now, without waiting.

        `Trimmed` if there is none and the origin is not below; None if there is none and the
        origin is below, so that a position that was read once is not in this log.
        """
        ...

    async def tail(self) -> int:
        """Return a position at or before the present end of the log (START if empty): a new
        reader that has stepped past it is current as of this call."""
        ...

    async def set_pulse(self, peer: str, data: bytes) -> None:
        """Create the peer's ephemeral pulse in this session (replacing older data)."""
        ...

    async def pulses(self) -> dict[str, bytes]:
        """Return all pulses that exist now."""
        ...

    async def wait_pulse_gone(self, peer: str) -> None:
        """Return once the pulse is absent; at once if it is already. Cancellable."""
        ...

    async def origin(self) -> Origin | None:
        """Return the present origin, or None before the first gc. Re-reads if a chunk vanished."""
        ...

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """Write chunks, then the pointer if its version still is ``expected_version``
        (-1: there is none yet). False, with own chunks deleted, if another won."""
        ...

    async def trim(self, upto: int) -> int:
        """Delete records up to ``upto`` (never above the origin) in batches, resuming from
        the progress kept in the pointer; returns how many were deleted."""
        ...

    async def rotate(self) -> bool:
        """Close the present segment and open the next one, if the present one has had its
        records; whether it did. A record that lands behind a segment's end is never read:
        `append` appends it again."""
        ...

    async def aclose(self) -> None:
        """End the session; its pulse goes at once."""
        ...


class LogBackend(Protocol):
    """Opens sessions with one cluster's log."""

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        ...

    async def session(self) -> LogSession:
        """Return a new session; raises `LogUnavailable` if none can be had in time."""
        ...

    async def look(self, position: int) -> Record | Trimmed | None:
        """Return as `LogSession.look`, over a connection of its own; raises `LogUnavailable`.

        A log that was set back may refuse sessions that saw more of it, but not new ones.
        """
        ...

    async def destroy(self) -> None:
        """Delete the cluster's log altogether."""
        ...
