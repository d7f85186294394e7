"""Which peers to talk to: the address that is given, or those whose pulses ZooKeeper shows."""

from __future__ import annotations

import os

from onyxq.access.credentials import ZookeeperCredentials
from onyxq.client.asynchronous import ADDRESS
from onyxq.errors import BadRequest


def peers(connect: str | None, zookeeper: str | None, cluster: str) -> list[str]:
    """Addresses of peers, to be tried in turn; blocking where ZooKeeper is asked.

    ``connect``: one or several ``HOST:PORT``, comma-separated.  What ZooKeeper is shown
    comes from ``ONYXQ_ZOOKEEPER_AUTH`` and its neighbours.  Raises
    `BadRequest` if both are given, and what `onyxq.log.zookeeper_pulses.addresses` raises.
    """
    if zookeeper is None:
        return [one.strip() for one in (connect or ADDRESS).split(",")]
    if connect is not None:
        raise BadRequest("give either connect or zookeeper", field="zookeeper")
    from onyxq.log.zookeeper_pulses import addresses  # kazoo is loaded by those who need it

    shown = {name: os.environ.get(f"ONYXQ_ZOOKEEPER_{name.upper()}", "") for name in ("auth", "ca", "cert", "key")}
    return addresses(zookeeper, cluster, ZookeeperCredentials(**shown))
