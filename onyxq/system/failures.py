"""Distinguishes a request that was refused from one that failed after it began.

`BadRequest` promises that nothing was stored, so only the validation before the first effect may
raise it.  `serving` surrounds each method of a node and keeps that promise.  Code that submits
rows or entries calls `begin`.  After that a `BadRequest` is a bug and becomes `Unknown`.  An
exception that is not an `OnyxqError` is a bug too.  The caller of a write then cannot know whether
it took effect, so it becomes `Unknown`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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


@contextmanager
def serving(
    what: str,
    *,
    reads: bool = False,
    failed: type[OnyxqError] = OnyxqError,
    passes: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Serve one request; raises only `OnyxqError` and the exceptions in ``passes``.

    ``what`` names the request in messages.  An unexpected exception becomes ``failed`` if the request only
    ``reads``, else `Unknown`.  May be nested.
    """
    outer, effects = _current.get(), _Effects()
    token = _current.set(effects)
    try:
        yield
    except BadRequest as error:
        if not effects.count:
            raise
        log.exception("%s was refused after it had begun", what)
        raise Unknown(f"{what} failed after it had begun: {error.message}") from error
    except OnyxqError:
        raise
    except Exception as error:
        if isinstance(error, passes):
            raise
        log.exception("%s failed unexpectedly", what)
        if reads:
            raise failed(f"{what} failed unexpectedly") from error
        raise Unknown(f"{what} failed unexpectedly: whether it took effect is not known") from error
    finally:
        _current.reset(token)
        if outer is not None:
            outer.count += effects.count
