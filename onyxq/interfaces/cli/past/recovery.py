"""``onyxq cluster recover``: a new log for a cluster whose log was lost, made from the data of its nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest, Conflict, NotFound
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.core.log.interface import LogBackend
    from onyxq.core.replica import Replica
    from onyxq.history.recovery.findings import Found, Newest
    from onyxq.history.recovery.new_log import Present

NODE_FILE = "data.mdb"
COLUMNS = ("source", "node", "position", "log_from", "digest", "newest")


def recover(context: Context) -> None:
    """Show what the nodes know of the log and, with ``--yes``, begin a new log."""
    args = context.args
    if args.export:
        _export(context)
        return
    if not args.directories and not args.files:
        raise BadRequest(
            "no data directory of a node was given",
            field="data",
            hint="Give --data DIR for each stopped peer of this machine, and --from FILE for each one elsewhere.",
        )
    hosts = context.text("zookeeper")
    root = None if hosts else _root(args.directories)

    from onyxq.interfaces.cli.processes.daemons import run_in_trio
    from onyxq.log.backends import opened

    said: dict[str, Any] = {}

    async def body() -> None:
        directories = _nodes_of(root) if root is not None else [Path(found) for found in args.directories]
        newest = await _newest(context, directories, said)
        credentials = context.zookeeper_credentials()
        async with opened(
            hosts or None, context.args.name, root or Path(), credentials=credentials, segment_records=1
        ) as backend:
            present = await _look(backend, newest, said)
            _check_needed(context.args.name, present)
            _check_consent(context, newest)
            if args.yes:
                said["done"] = _made(await _begin(backend, newest, present))

    try:
        run_in_trio(body)
    finally:
        if not context.out.as_json:
            _print(context, said, hosts)
    if context.out.as_json:
        context.out.document(said)
    elif args.yes:
        context.out.result(None, f"\nThe new log begins at position {said['done']['position']}. Next: start the peers.")
    else:
        context.out.result(None, "\nNothing was changed. To begin a new log, run this again with --yes.")


# --- what the nodes and the log have


def _export(context: Context) -> None:
    args = context.args
    if len(args.directories) != 1 or args.files:
        raise BadRequest("--export takes exactly one --data directory", field="export")

    from onyxq.history.recovery.findings import export, read_directory
    from onyxq.interfaces.cli.processes.daemons import run_in_trio

    async def body() -> None:
        found = await read_directory(Path(args.directories[0]))
        export(found, args.export)
        context.out.fields({"file": args.export, **_row(found)})

    run_in_trio(body)


async def _newest(context: Context, directories: list[Path], said: dict[str, Any]) -> Newest:
    """Return the newest replica that the nodes know; put the report of all nodes into ``said``."""
    from onyxq.history.recovery.findings import newest_of, read_directory, read_export
    from onyxq.history.recovery.new_replica import void_claims

    found: list[Found] = []
    for directory in directories:
        found.append(await read_directory(directory))
        said["found"] = [_row(one) for one in found]
    for file in context.args.files:
        found.append(read_export(Path(file)))
        said["found"] = [_row(one) for one in found]
    newest = newest_of(found)
    replica = newest.replica
    if replica.cluster is None:
        raise NotFound("none of the given nodes has joined a cluster", field="data")
    if replica.cluster.name != context.args.name:
        raise Conflict(
            f"the directories belong to cluster {replica.cluster.name!r}, not {context.args.name!r}", field="name"
        )
    for row in said["found"]:
        row["newest"] = row["source"] == newest.of.source
    said["cluster"], said["cluster_id"] = replica.cluster.name, replica.cluster.id
    said["position"] = replica.position
    said["missing"] = [{"node": node, "partitions": copies} for node, copies in sorted(newest.missing.items())]
    said["partitions_without_majority"] = newest.without_majority
    said["claims_made_void"] = void_claims(replica)
    said["transactions_to_finish"] = len(replica.transactions)
    return newest


def _row(found: Found) -> dict[str, Any]:
    return {
        "source": found.source,
        "node": found.node,
        "position": found.position,
        "log_from": found.start.position,
        "digest": found.digest.hex(),
    }


async def _look(backend: LogBackend, newest: Newest, said: dict[str, Any]) -> Present:
    from onyxq.history.recovery.new_log import check_nobody_runs, present_log

    session = await backend.session()
    try:
        await check_nobody_runs(session)
        present = await present_log(session, newest)
    finally:
        await session.aclose()
    said["log"] = {"state": present.state, "position": present.position, "about": present.about}
    return present


def _check_needed(name: str, present: Present) -> None:
    from onyxq.history.recovery.new_log import INTACT, LATER

    if present.state == INTACT:
        raise Conflict(
            "the log is intact: it continues what every given node has read",
            hint="Nothing was changed. Start the peers.",
        )
    if present.state == LATER:
        raise Conflict(
            f"the log, at position {present.position}, begins after everything that the given nodes have read",
            hint="It is probably intact: start the peers. Only if you know that these nodes worked on another log,"
            f" run: onyxq cluster destroy {name}. Then run this command again.",
        )


def _check_consent(context: Context, newest: Newest) -> None:
    left_out = {node for said in context.args.without for node in said.split(",")}
    unknown = sorted(left_out - newest.missing.keys())
    if unknown:
        raise BadRequest(f"node {unknown[0]} is not missing", field="without", hint="Name only missing nodes.")
    missing = sorted(newest.missing.keys() - left_out)
    if missing:
        raise Conflict(
            f"no data of node {', '.join(missing)} is given: records that only it has read would be lost",
            field="without",
            hint="Give its directory with --data or --from. If it is lost, add: "
            + " ".join(f"--without {n}" for n in missing),
        )


# --- the new log


async def _begin(backend: LogBackend, newest: Newest, present: Present) -> Replica:
    from onyxq.core.log.interface import START
    from onyxq.history.recovery.new_log import EMPTY_LOG, begin_anew

    replace = present.state != EMPTY_LOG or present.position != START
    return await begin_anew(backend, newest, replace=replace, now_ms=lambda: time.time_ns() // 1_000_000)


def _made(made: Replica) -> dict[str, Any]:
    return {"position": made.position, "digest": made.digest.hex()}


# --- the embedded log


def _root(directories: list[str]) -> Path:
    """Return the one directory of an embedded cluster; raises `BadRequest`."""
    if len(directories) != 1:
        raise BadRequest(
            f"without --zookeeper, exactly one --data is expected, not {len(directories)}",
            field="zookeeper",
            hint="Give --zookeeper HOST:PORT,... Only a cluster of one process (onyxq dev) has no ZooKeeper.",
        )
    return Path(directories[0])


def _nodes_of(root: Path) -> list[Path]:
    """Return the data directories of an embedded cluster; raises `NotFound` and `BadRequest`."""
    if (root / NODE_FILE).exists():
        if not (root / "log").is_dir():
            raise BadRequest(
                f"{root} has no log beside its data, as nodes of clusters on ZooKeeper have none",
                field="zookeeper",
                hint="Give --zookeeper HOST:PORT,... If this peer ran without ZooKeeper and its log is lost,"
                f" make an empty directory {root / 'log'} first.",
            )
        return [root]
    found = sorted(place.parent for place in root.glob(f"node-*/{NODE_FILE}"))
    if not found:
        raise NotFound(f"{root} holds no data directory of a node", field="data", hint="Give the --data of onyxq dev.")
    return found


# --- output


def _print(context: Context, said: dict[str, Any], hosts: str) -> None:
    rows = [{**row, "newest": "yes" if row.get("newest") else ""} for row in said.get("found", ())]
    if rows:
        context.out.table(rows, rows, COLUMNS)
    if "log" not in said:
        return
    log = said["log"]
    where = f"the log in ZooKeeper ({hosts})" if hosts else "the log of this process (no --zookeeper)"
    position = f", position {log['position']}" if log["position"] >= 0 else ""
    about = f": {log['about']}" if log["about"] else ""
    lines = [
        "",
        f"cluster {said['cluster']} ({said['cluster_id']}), newest position {said['position']}",
        f"{where} is {log['state']}{position}{about}",
        f"claims that become void: {said['claims_made_void']}; transactions to finish:"
        f" {said['transactions_to_finish']}",
    ]
    for one in said["missing"]:
        lines.append(f"missing: node {one['node']}, with copies of {one['partitions']} partitions")
    if said["partitions_without_majority"]:
        lines.append(f"partitions with a majority of their copies missing: {said['partitions_without_majority']}")
    context.out.result(None, "\n".join(lines))
