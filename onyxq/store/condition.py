"""Whether a store's disk accepts writes, and whether its file is damaged, for the node that owns it.

The store records what happens to it.  The node ends if the file is damaged.  Its peer leaves
the ring while the disk accepts no writes (design: facts and the store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from onyxq.core.errors import OnyxqError


class Condition:
    """Whether the disk accepts writes and the file is sound. Times are seconds of trio's clock."""

    def __init__(self) -> None:
        self.refusal = ""
        """Why the last write was refused; empty if it was not."""
        self.fatal: OnyxqError | None = None
        """Why the store is unusable, or None."""
        self._since = 0.0
        """Second at which the disk last accepted a write, or writes began to wait for it."""
        self._waiting = 0
        self._ending: Callable[[], object] = lambda: None
        self._returning: Callable[[], object] = lambda: None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Note that a write waits for the disk while the context is active."""
        self.begin_write()
        try:
            yield
        finally:
            self.end_write()

    def begin_write(self) -> None:
        """Note that a write waits for the disk until `end_write`."""
        if not (self._waiting or self.refusal):
            self._since = trio.current_time()
        self._waiting += 1

    def end_write(self) -> None:
        """Note that a write does not wait any more."""
        self._waiting -= 1

    def wrote(self) -> None:
        """Note that the disk accepted a write, and that reads see it."""
        was, self.refusal = self.refusal, ""
        self._since = trio.current_time()
        if was:
            self._returning()

    def refused(self, why: str) -> None:
        """Note that the disk refused a write."""
        self.refusal = why or "no reason was given"

    def trouble_s(self) -> float:
        """Return for how many seconds the disk has accepted no write although one was due."""
        return trio.current_time() - self._since if self.refusal or self._waiting else 0.0

    def end(self, error: OnyxqError) -> None:
        """Note that the store is unusable, so the node must end. The first reason counts."""
        if self.fatal is None:
            self.fatal = error
            self._ending()

    def on_return(self, returning: Callable[[], object]) -> None:
        """Call ``returning`` whenever the disk accepts writes again.

        Writes that it refused may nevertheless be in the store.
        """
        self._returning = returning

    def on_end(self, ending: Callable[[], object]) -> None:
        """Call ``ending`` when the store becomes unusable, or now if it is already."""
        self._ending = ending
        if self.fatal is not None:
            ending()
