"""The log as peers see it: one interface for ZooKeeper, embedded and simulated logs.

A `LogSession` is one session of one peer (or tool) with the log.  It appends, reads,
keeps the peer's pulse, watches other pulses and moves the origin.  A *lost* session has ended
for good: every call raises `SessionLost` and the node opens another.
*Disconnected* is not lost: reads wait, appends raise `AppendUnknown`.
"""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from onyxq.core.errors import LogUnavailable

START = -1
"""Position before the first record."""
SEQUENCE_BITS = 31
"""Bits for the sequence of a record in a position; the higher bits are the segment."""
SEGMENT_RECORDS = 1 << 30
"""Records after which a segment may be closed: ZooKeeper's sequence is a signed 32-bit number."""


def segment_of(position: int) -> int:
    """Return the segment of a position; 0 for `START`."""
    return max(position, 0) >> SEQUENCE_BITS


def segment_start(segment: int) -> int:
    """Return the position of a segment's first record."""
    return segment << SEQUENCE_BITS


def records_after(position: int, end: int) -> int:
    """Return the number of records after a position up to ``end``, as far as they are in the segment of ``end``."""
    return max(0, end - max(position, segment_start(segment_of(end)) - 1))


class SessionLost(LogUnavailable):
    """The session expired or was closed; its pulse is gone."""

    code = "session_lost"


class AppendUnknown(LogUnavailable):
    """The connection broke during an append: the record may exist, twice, or not at all."""

    code = "append_unknown"


@frozen
class Record:
    """One stored record; `onyxq.core.log.record` decodes the bytes."""

    position: int
    ctime_ms: int
    data: bytes


@frozen
class Trimmed:
    """The answer that a position was trimmed: the reader must read the origin and continue after it."""

    origin: int


@frozen
class Origin:
    """The snapshot from which a new reader starts."""

    position: int
    data: bytes
    trimmed: int
    """Last deleted position: everything up to it was deleted from the log."""
    version: int
    """Version of the pointer, for its compare-and-set; see `LogSession.store_origin`."""


class LogSession(Protocol):
    """One session with one cluster's log. All methods run in trio."""

    @property
    def connected(self) -> bool:
        """Whether the log can be reached now, as far as this session knows."""

    @property
    def connections(self) -> int:
        """Number of times that this session connected. Within one connection the log cannot go back."""

    async def wait_lost(self) -> None:
        """Return once the session is lost (or closed)."""

    async def append(self, data: bytes) -> int:
        """Append one record (at most 512 KiB) and return its position.

        Raises `AppendUnknown` when the connection broke, `SessionLost`, `TooLarge`.
        Exactly-once is the outbox's work, not this method's.
        """

    async def read(self, position: int) -> Record | Trimmed:
        """Return the record at ``position``, after waiting until it is written.

        Consecutive calls are served from a window of pipelined gets. Cancellable.
        At the end of a closed segment, this is the first record of the next segment.
        """

    async def look(self, position: int) -> Record | Trimmed | None:
        """Return the record at ``position`` in the present log, without waiting.

        If the record is missing: `Trimmed` if the origin is at or above the position, else None.  So None for a
        position that was read before means that the position is not in this log.
        """

    async def tail(self) -> int:
        """Return a position at or before the present end of the log (`START` if the log is empty).

        A new reader that has stepped past this position is current as of this call.
        """

    async def set_pulse(self, peer: str, data: bytes) -> None:
        """Create the peer's ephemeral pulse in this session, replacing older data."""

    async def pulses(self) -> dict[str, bytes]:
        """Return all pulses that exist now: peer -> data."""

    async def wait_pulse_gone(self, peer: str) -> None:
        """Wait until the pulse is absent, and return at once if it is already. Cancellable."""

    async def origin(self) -> Origin | None:
        """Return the present origin, or None before the first gc. Reads again if a chunk was deleted meanwhile."""

    async def store_origin(self, position: int, data: bytes, *, expected_version: int) -> bool:
        """Write the chunks, then the pointer if its version is still ``expected_version``.

        -1 means that the pointer does not exist yet.  Return False, with own chunks deleted, if another
        writer was first.
        """

    async def trim(self, upto: int) -> int:
        """Delete records up to ``upto`` (never above the origin) in batches; return how many were deleted.

        It resumes from the progress kept in the pointer.
        """

    async def rotate(self) -> bool:
        """Close the present segment and open the next one, if the present one is full; return whether it did.

        A record that is written after a segment's end is never read; `append` appends it again.
        """

    async def aclose(self) -> None:
        """End the session; its pulse is deleted at once."""


class LogBackend(Protocol):
    """A factory of sessions with one cluster's log."""

    async def session(self) -> LogSession:
        """Return a new session; raises `LogUnavailable` if the log does not open one in time."""

    async def look(self, position: int) -> Record | Trimmed | None:
        """Return the same as `LogSession.look`, over a separate connection; raises `LogUnavailable`.

        A log that was set back may refuse sessions that saw more of it, but not new ones.
        """

    async def destroy(self) -> None:
        """Delete the cluster's log completely."""
