"""Distinguishes a request that was refused from one that failed after it began.

`BadRequest` promises that nothing was stored, so only the validation before the first effect may
raise it.  `serving` surrounds each method of a node and keeps that promise.  Code that submits
rows or entries calls `begin`.  After that a `BadRequest` is a bug and becomes `Unknown`.  An
exception that is not an `OnyxqError` is a bug too.  The caller of a write then cannot know whether
it took effect, so it becomes `Unknown`.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from types import TracebackType

from onyxq.core.errors import BadRequest, OnyxqError, Unknown

log = logging.getLogger(__name__)


class _Effects:
    """Number of steps of one request that may have changed something."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_current: ContextVar[_Effects | None] = ContextVar("effects", default=None)


def begin() -> None:
    """Note that the present request may change something from now on."""
    effects = _current.get()
    if effects is not None:
        effects.count += 1


def refused() -> None:
    """Note that the step announced by the last `begin` of this task has changed nothing."""
    effects = _current.get()
    if effects is not None:
        effects.count -= 1


class serving:
    # A class, because a generator would take several times as long.
    """Serve one request; raises only `OnyxqError` and the exceptions in ``passes``.

    ``what`` names the request in messages.  An unexpected exception becomes ``failed`` if the request only
    ``reads``, else `Unknown`.  May be nested.
    """

    __slots__ = ("_effects", "_failed", "_outer", "_passes", "_reads", "_token", "_what")

    def __init__(
        self,
        what: str,
        *,
        reads: bool = False,
        failed: type[OnyxqError] = OnyxqError,
        passes: tuple[type[Exception], ...] = (),
    ) -> None:
        self._what = what
        self._reads = reads
        self._failed = failed
        self._passes = passes

    def __enter__(self) -> None:
        self._outer, self._effects = _current.get(), _Effects()
        self._token = _current.set(self._effects)

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        _current.reset(self._token)
        if self._outer is not None:
            self._outer.count += self._effects.count
        if isinstance(error, Exception):
            self._judge(error)

    def _judge(self, error: Exception) -> None:
        """Raise what the caller gets instead of an error; returns if that is the error itself."""
        what = self._what
        if isinstance(error, BadRequest):
            if self._effects.count:
                log.error("%s was refused after it had begun", what, exc_info=error)
                raise Unknown(f"{what} failed after it had begun: {error.message}") from error
        elif not isinstance(error, (OnyxqError, *self._passes)):
            log.error("%s failed unexpectedly", what, exc_info=error)
            if self._reads:
                raise self._failed(f"{what} failed unexpectedly") from error
            raise Unknown(f"{what} failed unexpectedly: whether it took effect is not known") from error
