"""``onyxq dev``: a whole cluster in one process, with a banner and, if asked for, a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from onyxq import __version__
from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.processes.daemons import (
    PEERS_MAX,
    access_of,
    address_of,
    archives_of,
    check_spark,
    http_of,
    run_until_stopped,
    shown,
    spark_of,
    taskstore_of,
    timers_of,
    words,
)
from onyxq.interfaces.cli.processes.reload import KILLED_PAUSE_S, signal_name, start_child
from onyxq.system.settings import SETTINGS

if TYPE_CHECKING:
    import trio

    from onyxq.interfaces.daemon import PeerAddresses


def dev(context: Context) -> int | None:
    """Run a whole cluster in this process, and the worker of an application beside it."""
    peers = context.args.peers
    if peers is not None and not 1 <= peers <= PEERS_MAX:
        raise BadRequest(f"peers must be 1 to {PEERS_MAX}, not {peers}", field="peers")
    data, listen, http = context.given("data"), address_of(context, "listen"), http_of(context)
    check_spark(context)

    from onyxq.interfaces.local_cluster import COPIES, LOCAL, LocalCluster
    from onyxq.interfaces.peer_config import nodes_in

    if peers is None:
        peers = nodes_in(data) or 1 if data else 1
    config = evolve(
        LOCAL,
        listen=listen,
        http=http,
        **spark_of(context),
        **archives_of(context),
        access=access_of(context, alone=True),
        **timers_of(context),
        allow_anyone=context.switched_on("allow_anyone"),
        http_hosts=context.text("http_hosts"),
        certificates=context.certificates(),
        given=context.settings(),
    )
    findable = data is not None and not context.text("tls_cert")  # an App with the directory speaks no TLS
    cluster = LocalCluster(peers=peers, data=data, config=config, first=taskstore_of(context), findable=findable)
    worker = WorkerProcess()

    async def serve(stop: trio.Event) -> None:
        async with cluster:
            found = [node.addresses for node in cluster.nodes if node.addresses is not None]
            announce(context, found, data)
            if cluster.copies < min(COPIES, peers):
                copies = f"{cluster.copies} {'copy' if cluster.copies == 1 else 'copies'}"
                context.out.note(f"this cluster keeps {copies} of each task; more peers add no copies")
            if context.args.app:
                await worker.run(context, found[0].address, stop)
            else:
                await stop.wait()

    run_until_stopped(context, serve, at_once=worker.kill)
    return worker.code


@define
class WorkerProcess:
    """The worker of the application, in a process of its own: user code cannot stop the cluster."""

    code: int | None = None
    """Its exit code if it ended before the cluster was stopped."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self, context: Context, address: str) -> subprocess.Popen[bytes]:
        """Start it; its environment has the address and certificates."""
        command = [sys.executable, "-m", "onyxq", "worker", "start", context.args.app]
        command += ["--concurrency", context.args.concurrency]
        command += ["--reload"] if context.args.reload else []
        command += ["--import", context.args.imports] if context.args.imports else []
        command += ["--config", context.args.config] if context.args.config else []
        environment = {**os.environ, **context.certificates().to_environment(), "ONYXQ_CONNECT": address}
        self._process = start_child(command, environment)
        return self._process

    async def run(self, context: Context, address: str, stop: trio.Event) -> None:
        """Run it until it ends, and again if a signal kills it; let it finish its tasks when ``stop`` is set."""
        import trio

        async with trio.open_nursery() as nursery:

            async def pass_on() -> None:
                await stop.wait()
                self._signal(signal.SIGTERM)

            nursery.start_soon(pass_on)
            code = -1
            while code < 0 and not stop.is_set():
                process = self.start(context, address)
                code = await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
                if code < 0 and not stop.is_set():
                    context.out.note(f"the worker was killed by {signal_name(code)}: starting another")
                    with trio.move_on_after(KILLED_PAUSE_S):
                        await stop.wait()
            if not stop.is_set():
                self.code = code or None
            nursery.cancel_scope.cancel()

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def announce(context: Context, peers: Sequence[PeerAddresses], data: str | None) -> None:
    """Print the ready line of each peer for a program that reads it, and for people what runs and what to do next."""
    document = {"ready": True, "peers": [shown(peer) for peer in peers]}
    if context.out.as_json or not (context.out.on_terminal and context.out.notes_on_terminal):
        context.out.line(document, "\n".join(f"ready {words(peer)}" for peer in peers))
    if not context.out.as_json:
        for line in banner(context, peers, data):
            context.out.note(line)


def banner(context: Context, peers: Sequence[PeerAddresses], data: str | None) -> list[str]:
    """Return the lines that say what runs and what to do next."""
    first = peers[0]
    scheme = "https" if context.text("tls_cert") else "http"
    default = first.address == SETTINGS["connect"].default
    connect = "" if default else f" --connect {first.address}"
    lines = [
        f"OnyxQ {__version__} cluster of {len(peers)} peer{'s' if len(peers) > 1 else ''}",
        f"  clients    {', '.join(peer.address for peer in peers)}",
    ]
    if first.http:
        lines += [f"  dashboard  {scheme}://{first.http}/", f"  HTTP API   {scheme}://{first.http}/docs"]
    if first.taskstore:
        lines.append(f"  task store {first.taskstore}")
    lines.append(f"  data       {data or 'temporary: deleted when this command ends (keep it with --data DIR)'}")
    if context.args.app:
        return [*lines, f"Ctrl-C stops the worker of {context.args.app} and the cluster"]
    return [
        *lines,
        "Next, in another terminal:",
        f"  onyxq worker start MODULE:APP{connect}         run the functions of your application",
        f"  onyxq task call MODULE:FUNCTION ARGS{connect}  enqueue a call",
        f"  onyxq top{connect}                             watch queues and workers",
        "Ctrl-C stops the cluster",
    ]
