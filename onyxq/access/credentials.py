"""What this side shows others: values that settings make and that the networks use."""

from __future__ import annotations

from attrs import field, frozen


@frozen
class ZookeeperCredentials:
    """What ZooKeeper is shown; without any, its znodes are made for everybody, as others may then read them."""

    auth: str = field(default="", repr=False)
    """``digest:USER:PASSWORD`` or ``sasl:USER:PASSWORD``."""
    ca: str = ""
    """File of the authorities that its certificate is checked against; empty: no TLS."""
    cert: str = ""
    key: str = field(default="", repr=False)
    """File of this side's certificate, and of its key."""


ANONYMOUS = ZookeeperCredentials()
"""Shows nothing."""
