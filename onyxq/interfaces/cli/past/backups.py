"""``onyxq cluster backup`` and ``restore``: a whole cluster in a file, and a new cluster from that file."""

from __future__ import annotations

from pathlib import Path

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context


def backup(context: Context) -> None:
    """Write a backup of the cluster."""
    from onyxq.history.backup.capture import take
    from onyxq.interfaces.cli.processes.daemons import run_in_trio

    async def body() -> None:
        async with context.asynchronous_client() as client:
            context.out.fields(await take(client.call, context.args.file, progress=context.out.progress))

    run_in_trio(body)


def restore(context: Context) -> None:
    """Make a new cluster from a backup: the log, and a data directory for each node."""
    from onyxq.core.log.interface import LogBackend
    from onyxq.history.backup.directories import Directories
    from onyxq.history.backup.file import read
    from onyxq.history.backup.restore import Restored
    from onyxq.history.backup.restore import restore as restored
    from onyxq.interfaces.cli.processes.daemons import run_in_trio
    from onyxq.log.backends import opened

    data, hosts = context.given("data"), context.text("zookeeper")
    if not data:
        raise BadRequest("no directory for the data is given", field="data", hint="Give --data DIR.")
    root = Path(data)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BadRequest(f"{root} is not an empty directory", field="data", hint="Choose another directory.")
    found = read(context.args.file)
    name = context.args.name or found.file.cluster
    directories = Directories(lambda number, node: root / (node if hosts else f"node-{number}"))
    directories.check(found.nodes)  # Check everything before the first file is made.
    made: list[Restored] = []

    async def fill(backend: LogBackend) -> None:
        session = await backend.session()
        try:
            restoring = restored(
                found, session, name=name, new_stores=directories.new_stores, progress=context.out.progress
            )
            made.append(await restoring)
        finally:
            await session.aclose()

    async def body() -> None:
        credentials = context.zookeeper_credentials()
        async with opened(hosts or None, name, root, credentials=credentials, segment_records=1) as backend:
            await fill(backend)

    run_in_trio(body)
    (done,) = made
    shown = {
        "cluster": done.cluster,
        "cluster_id": done.cluster_id,
        "position": done.position,
        "rows": done.rows,
        "nodes": [{"node": node, "data": str(directory)} for node, directory in directories.made.items()],
    }
    lines = [f"restored {done.cluster} ({done.cluster_id}): {done.rows} rows; the log continues after {done.position}"]
    lines += [f"  node {node}: {directory}" for node, directory in directories.made.items()]
    context.out.result(shown, "\n".join(lines))
