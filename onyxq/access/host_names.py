"""The names at which HTTP answers, against pages whose own name is made to point here (DNS rebinding).

A browser lets a page read whatever comes from the host that the page is of.  Where nobody is asked
for a credential, a page whose name comes to stand for this machine could do what this machine's
programs may.  Requests tell the name that they were sent to: one that is none of this node's is
refused.  An address is nobody's to point elsewhere, and who names no host is no browser.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from attrs import frozen

from onyxq.core.errors import BadRequest, Misdirected

ANY = "any"
SETTING = "http_hosts"
_OWN = ("localhost",)
"""Names that stand for the machine itself, in every browser."""
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::[0-9]*)?")


@frozen
class Hosts:
    """The names that requests may be sent to."""

    names: frozenset[str] = frozenset()
    any: bool = False

    def check(self, header: str | None) -> None:
        """Raise `Misdirected` unless the header ``Host`` names this node."""
        if header is None or self.any or self._knows(header):
            return
        raise Misdirected(f"this peer is not asked by the name {header[:200]!r}", field="Host")

    def _knows(self, header: str) -> bool:
        found = _HOST.fullmatch(header.strip().lower())
        if found is None:
            return False
        host = found["host"].strip("[]").removesuffix(".")
        return is_address(host) or host in (*_OWN, *self.names) or host.endswith(".localhost")


EVERY = Hosts(any=True)
"""Whatever the name."""


def hosts(said: str, *, listens: Iterable[str], asks: bool) -> Hosts:
    """What the setting says, besides ``localhost``, addresses and the names of ``listens``; raises `BadRequest`.

    ``asks``: credentials are asked for, which no page has: then names matter only if the setting says some.
    """
    words = [word.strip().lower() for word in said.split(",") if word.strip()]
    if ANY in words or (asks and not words):
        return EVERY
    for word in words:
        if not _NAME.fullmatch(word):
            raise BadRequest(
                f"{SETTING}: {word[:200]!r} is no name of a host",
                field=SETTING,
                hint=f"Comma-separated names without port, or {ANY}.",
            )
    own = {place.rpartition(":")[0].strip("[]").lower() for place in listens}
    return Hosts(frozenset(own | set(words)))


def is_address(host: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(host.replace("%25", "%"))
    except ValueError:
        return False
    return True
