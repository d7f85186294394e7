"""``onyxq cluster create``, ``protect`` and ``destroy``: clusters on ZooKeeper, without a running peer."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from log_entries.registry import ENTRIES
from onyxq.core.errors import BadRequest, Conflict
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.core.cluster_settings import Settings
    from onyxq.core.log.interface import LogSession
    from onyxq.core.replica import Replica

TOOL = "tool"
"""Writer of records that no peer appended."""


def _checked(value: int, name: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise BadRequest(f"{name} must be from {low} to {high}, not {value}", field=name)
    return value


def create(context: Context) -> None:
    """Append the entry that creates a cluster; raises `Conflict` if the name is taken."""
    from onyxq.core.cluster_settings import SETTINGS_LIMITS, Settings

    args = context.args
    settings = Settings(
        **{
            name: _checked(context.number(name), name, *limits)
            for name, limits in SETTINGS_LIMITS.items()
            if hasattr(args, name)
        }
    )
    hosts = _hosts(context)

    from onyxq.interfaces.cli.processes.daemons import run_in_trio
    from onyxq.log.zookeeper import ZookeeperBackend

    backend = ZookeeperBackend(hosts, args.name, credentials=context.zookeeper_credentials())
    wanted = uuid.uuid4().hex

    async def body() -> None:
        session = await backend.session()
        try:
            await _create(session, args.name, wanted, settings)
        finally:
            await session.aclose()

    run_in_trio(body)
    context.out.result({"name": args.name, "id": wanted}, f"created {args.name} ({wanted})")


def destroy(context: Context) -> None:
    """Delete the log of a cluster."""
    args = context.args
    if not args.yes:
        raise BadRequest(
            f"this deletes the log of cluster {args.name!r} and all its claims",
            field="yes",
            hint="Stop its peers, then repeat the command with --yes.",
        )
    hosts = _hosts(context)

    from onyxq.interfaces.cli.processes.daemons import run_in_trio
    from onyxq.log.zookeeper import ZookeeperBackend

    run_in_trio(ZookeeperBackend(hosts, args.name, credentials=context.zookeeper_credentials()).destroy)
    context.out.result({"name": args.name, "destroyed": True}, f"destroyed {args.name}")


def protect(context: Context) -> None:
    """Give the znodes of a cluster to the user of ``zookeeper_auth`` alone."""
    hosts, credentials = _hosts(context), context.zookeeper_credentials()
    if not credentials.auth:
        raise BadRequest("zookeeper_auth is not set: it names the user who gets the znodes", field="zookeeper_auth")

    from onyxq.interfaces.cli.processes.daemons import run_in_trio
    from onyxq.log.zookeeper import ZookeeperBackend

    found = []

    async def body() -> None:
        found.append(await ZookeeperBackend(hosts, context.args.name, credentials=credentials).protect())

    run_in_trio(body)
    said = {"name": context.args.name, "znodes": found[0]}
    context.out.result(said, f"{found[0]} znodes of {context.args.name} now belong to the user of zookeeper_auth alone")


async def _create(session: LogSession, name: str, cluster_id: str, settings: Settings) -> None:
    from log_entries import create_cluster
    from log_entries.registry import VERSIONS
    from onyxq.core.log.record import encode_entry, encode_record

    entry = create_cluster.creation(name, cluster_id, settings, VERSIONS)
    # Two creations may race. The log orders them, and the second one changes nothing.
    record = encode_record(cluster_id, TOOL, 1, time.time_ns() // 1_000_000, [encode_entry(entry, ENTRIES)])
    replica = await _read_to(session, await session.append(record))
    if replica is None or replica.cluster is None or replica.cluster.id != cluster_id:
        raise Conflict(f"cluster {name!r} exists already", field="name", hint="Choose another name, or destroy it.")


async def _read_to(session: LogSession, position: int) -> Replica | None:
    """Return the replica at a position, or once it has a cluster; None if the log is trimmed before that."""
    from onyxq.core.log.interface import Record
    from onyxq.core.replica import EMPTY
    from onyxq.core.step import step

    replica = EMPTY
    while replica.position < position and replica.cluster is None:
        found = await session.read(replica.position + 1)
        if not isinstance(found, Record):
            return None
        replica = step(replica, found, ENTRIES).replica
    return replica


def _hosts(context: Context) -> str:
    hosts = context.text("zookeeper")
    if not hosts:
        raise BadRequest(
            "no ZooKeeper is given", field="zookeeper", hint="Give --zookeeper HOST:PORT or set ONYXQ_ZOOKEEPER."
        )
    return hosts
