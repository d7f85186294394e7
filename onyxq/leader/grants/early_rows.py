"""Early rows: new tasks that may be granted while they are being stored (design: claims).

If a claimer waits for a task when one arrives, its grant goes to the log at once, beside the write of its row. The
claim is answered once both are decided, so no worker gets a task that is not in the store of its leader. If the row is
refused, the claim is given back. If the leader dies in between, the claim ends with its lease: no worker has its token.
"""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId

REFUSED_MAX = 10_000
"""Refused rows that are remembered."""


class EarlyRows:
    """Rows that are being written and whose tasks may be granted."""

    def __init__(self) -> None:
        self._bodies: dict[bytes, bytes] = {}
        """First id of a row -> its body, until the leader's own store has answered."""
        self._told: dict[bytes, list[Callable[[bool], None]]] = {}
        self._refused: dict[bytes, None] = {}
        """Rows that were not stored. Windows may still have their tasks."""

    def add(self, first: TaskId, body: bytes) -> Callable[[OnyxqError | None], None]:
        """Take a row that is not being written yet; return the function that takes the answer of the leader's store."""
        self._bodies[first] = body
        self._refused.pop(first, None)

        def heard(error: OnyxqError | None) -> None:
            self._bodies.pop(first, None)
            if error is not None:
                if len(self._refused) >= REFUSED_MAX:
                    self._refused.clear()
                self._refused[first] = None
            for tell in self._told.pop(first, ()):
                tell(error is None)

        return heard

    def body(self, first: bytes) -> bytes | None:
        """Return the body of a row that is being written."""
        return self._bodies.get(first)

    def is_refused(self, first: bytes) -> bool:
        """Return whether a row was refused. It may be stored nevertheless: the disk may have it, or another node."""
        return first in self._refused

    def when_decided(self, first: bytes, tell: Callable[[bool], None]) -> None:
        """Have ``tell`` called with whether a row that is being written was stored."""
        self._told.setdefault(first, []).append(tell)
