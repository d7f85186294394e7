"""Tokens and certificates that changed while a peer runs: read again when its process is told to (SIGHUP)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define

from onyxq.access.grants import Access
from onyxq.core.errors import BadRequest

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # whether it was done is told whatever else is


@define
class Renewal:
    """What is read, and who takes it."""

    read: Callable[[], Access]
    """The credentials as the settings and the file have them now; raises `BadRequest`."""
    take: Callable[[Access], None] | None = None
    """Has them count, with certificates as their files have them now; raises `BadRequest`, and changes nothing then.

    None: nobody runs who has any.
    """

    def now(self) -> None:
        """Read and hand over; if anything is wrong, all stays as it was, and the log says what."""
        if self.take is None:
            return
        try:
            access = self.read()
            self.take(access)
        except BadRequest as error:
            _log.error("tokens and certificates stay as they were: %s (%s)", error.message, error.advice)
        else:
            _log.info("tokens and certificates were read again: %d tokens", len(access.tokens))
