"""Tokens and certificates that change while a peer runs: its process reads them again on SIGHUP."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define

from onyxq.access.grants import Access
from onyxq.core.errors import BadRequest

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # the outcome is logged whatever the level of other loggers


@define
class Renewal:
    """Reads credentials again and passes them on."""

    read: Callable[[], Access]
    """Returns the credentials of the settings and the file as they are now; raises `BadRequest`."""
    take: Callable[[Access], None] | None = None
    """Activates credentials, with certificates as their files are now.

    Raises `BadRequest` and then changes nothing. None: there is nothing to renew.
    """

    def now(self) -> None:
        """Read and activate the credentials; on an error, log it and leave everything unchanged."""
        if self.take is None:
            return
        try:
            access = self.read()
            self.take(access)
        except BadRequest as error:
            hint = f" ({error.advice})" if error.advice else ""
            _log.error("tokens and certificates stay as they were: %s%s", error.message, hint)
        else:
            _log.info("tokens and certificates were read again: %d tokens", len(access.tokens))
