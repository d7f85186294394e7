"""Finds a cluster's peers in ZooKeeper by their pulses, for tools outside the ring; blocking."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from onyxq.access.credentials import ANONYMOUS, ZookeeperCredentials
from onyxq.core.errors import Forbidden, LogUnavailable, NotFound
from onyxq.log.zookeeper_access import REFUSED, shown
from onyxq.log.zookeeper_reader import Layout

CONNECT_TIMEOUT_S = 10.0


def addresses(hosts: str, cluster: str, credentials: ZookeeperCredentials = ANONYMOUS) -> list[str]:
    """Return ``HOST:PORT`` of the cluster's live peers, sorted by peer; changes nothing in ZooKeeper.

    Raises `LogUnavailable` if ZooKeeper does not answer, `NotFound` if no peer lives.
    """
    client = KazooClient(hosts, timeout=CONNECT_TIMEOUT_S, read_only=True, **shown(credentials).options)
    try:
        client.start(timeout=CONNECT_TIMEOUT_S)
        found = _pulses(client, Layout(cluster).pulses)
    except REFUSED:
        raise Forbidden(
            f"ZooKeeper shows cluster {cluster!r} to other credentials only", field="zookeeper_auth"
        ) from None
    except (KazooTimeoutError, KazooException) as error:
        raise LogUnavailable(f"ZooKeeper at {hosts} does not answer: {error!r}", field="zookeeper") from None
    finally:
        client.stop()
        client.close()
    if not found:
        raise NotFound(
            f"no peer of cluster {cluster!r} lives", field="cluster", hint="Check the name, or start a peer."
        )
    return found


def _pulses(client: KazooClient, directory: str) -> list[str]:
    found = []
    try:
        for peer in sorted(client.get_children(directory)):
            try:
                found.append(client.get(f"{directory}/{peer}")[0].decode())
            except NoNodeError:
                continue  # it left meanwhile
    except NoNodeError:
        return []
    return found
