"""Whether a store's disk takes writes, and whether its file is damaged, for the node that owns it.

The store notes what happens to it.  The node ends if the file is damaged, and its peer leaves
the ring while the disk takes no writes (design: facts and the store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from onyxq.core.errors import OnyxqError


class Condition:
    """See the module's first paragraph. Times are seconds of trio's clock."""

    def __init__(self) -> None:
        self.refusal = ""
        """Why the last write was refused; empty if it was not."""
        self.fatal: OnyxqError | None = None
        """Why the store can be used no longer."""
        self._since = 0.0
        """When the disk last took a write, or writes began to wait for it."""
        self._waiting = 0
        self._ending: Callable[[], object] = lambda: None
        self._returning: Callable[[], object] = lambda: None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A write waits for the disk while inside."""
        if not (self._waiting or self.refusal):
            self._since = trio.current_time()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def wrote(self) -> None:
        """Note that the disk took a write, which can be read."""
        was, self.refusal = self.refusal, ""
        self._since = trio.current_time()
        if was:
            self._returning()

    def refused(self, why: str) -> None:
        """Note that the disk refused a write."""
        self.refusal = why or "no reason was given"

    def trouble_s(self) -> float:
        """Return for how many seconds the disk has taken no write although one was due."""
        return trio.current_time() - self._since if self.refusal or self._waiting else 0.0

    def end(self, error: OnyxqError) -> None:
        """The store can be used no longer: the node must end. The first reason counts."""
        if self.fatal is None:
            self.fatal = error
            self._ending()

    def on_return(self, returning: Callable[[], object]) -> None:
        """Call ``returning`` whenever the disk takes writes again: what it refused may be in the store."""
        self._returning = returning

    def on_end(self, ending: Callable[[], object]) -> None:
        """Call ``ending`` once the store can be used no longer, or now if that is so already."""
        self._ending = ending
        if self.fatal is not None:
            ending()
