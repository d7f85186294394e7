"""The difference between a request that was refused and one that failed on the way.

`BadRequest` promises that nothing was stored, so only the validation that comes before the first effect may
raise it.  `serving` surrounds each method of a node and keeps that promise: whatever submits rows or entries
calls `begin`, and from then on a `BadRequest` is a bug and becomes `Unknown`.  An exception that is no
`OnyxqError` is a bug too.  The caller of a write then cannot tell whether it took effect, so it is `Unknown`.
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
    """Note that the request which is being served may change something from now on."""
    effects = _current.get()
    if effects is not None:
        effects.count += 1


def refused() -> None:
    """Note that what the last `begin` of this task announced has changed nothing."""
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
    """Serve one request; raises `OnyxqError` and what is in ``passes`` only.

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
