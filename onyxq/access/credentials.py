"""Credentials that this side presents to others; made from settings, used by the networks."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class ZookeeperCredentials:
    """Credentials for ZooKeeper.

    Without ``auth``, its znodes are open to all, so that other clients can read them.
    """

    auth: str = field(default="", repr=False)
    """``digest:USER:PASSWORD`` or ``sasl:USER:PASSWORD``."""
    ca: str = ""
    """File of the authorities that check ZooKeeper's certificate; empty: no TLS."""
    cert: str = ""
    key: str = field(default="", repr=False)
    """Files of this side's certificate and of its key."""


ANONYMOUS = ZookeeperCredentials()
"""No credentials."""
