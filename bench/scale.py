"""Measures what a task and a record cost each process of a cluster, with few peers and with many.

    python -m bench.scale [--peers 3,6,12] [--readers 6] [--paced 6,12] [--seconds 6]

Peers on one ZooKeeper go through the loop of `bench.lifecycle`. Only processor time is counted, from
the kernel's count for each process, and compared with the number of tasks and records. So other
programs on the machine change the figures little. ``--readers`` measures what a record costs a peer
that only reads it: the cluster has one partition, so all peers but three keep no task.
Prints one JSON document, from which `bench.scale_model` sizes clusters.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio

from bench.common import cpu_seconds, emit, machine, progress
from bench.competitors.base import AsyncLane, AsyncSystem
from bench.drive import Mode, lifecycle
from bench.onyxq_system import OnyxqLane
from bench.options import end_on_signal
from bench.pace import APPEND_S, ENTRIES_PER_S, PEERS, simulated
from bench.pace import SECONDS as SIMULATED_S
from bench.peers import PARTITIONS, Cluster, running, until_whole
from onyxq.client import AsyncClient
from onyxq.core.log.record import encode_record
from onyxq.log.zookeeper import ZookeeperBackend

PAYLOAD_BYTES = 100
COPIES = 3
MODES = "1x64/1,100x4/1,1x64/16,100x16/16"
READER_MODES = "1x8/1,1x64/1,100x4/1"
PACED_MODES = "1x64/16,1x512/16"
SLOWER = 16
"""How many times slower the machines are as which ``--paced`` outboxes pace themselves."""
EMPTY_PER_S = (50, 200, 500)
IDLE_S = 5.0
"""Length of the measurement without a client, in seconds."""
SESSION_TIMEOUT_MS = 30_000
"""Long, because many peers share the processors of one machine."""


class Load(NamedTuple):
    """A mode and the number of clients that share its lanes."""

    mode: Mode
    clients: int

    @classmethod
    def parse(cls, text: str) -> Load:
        """Parse ``BATCHxLANES/CLIENTS``."""
        mode, clients = text.split("/")
        return cls(Mode.parse(mode), int(clients))


class OnCluster(AsyncSystem):
    """A cluster that runs already, and clients that share the lanes; their coordinators are the peers in turn."""

    name = "onyxq-peers"

    def __init__(self, cluster: Cluster, clients: int) -> None:
        self._addresses = cluster.addresses
        self._count = clients
        self._clients = AsyncExitStack()

    def start(self, directory: Path) -> None:
        """Start nothing: the cluster runs."""

    def stop(self) -> None:
        """Stop nothing: the cluster runs on."""

    def settings(self) -> dict[str, Any]:
        """Return nothing: the document has the settings."""
        return {}

    async def open(self, queue: str, *, lanes: int, waiting: bool) -> list[AsyncLane]:
        """Open the clients; lane by lane takes the next one."""
        addresses = itertools.islice(itertools.cycle(self._addresses), self._count)
        clients = [await self._clients.enter_async_context(AsyncClient(each)) for each in addresses]
        return [OnyxqLane(clients[number % self._count], queue, f"worker-{number}") for number in range(lanes)]

    async def close(self) -> None:
        """Close the clients."""
        await self._clients.aclose()


class Usage:
    """What the processes of a cluster, and this process as the client, have used since a moment."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.zookeeper is not None
        self._cluster = cluster
        self._peers = [peer.pid for peer in cluster.peers]
        self._servers = cluster.zookeeper.pids
        self._before = self._counts()
        self._began = time.perf_counter()

    def since(self) -> dict[str, Any]:
        """Return seconds, milliseconds of processor time, records in the log, and bytes written."""
        seconds = time.perf_counter() - self._began
        now = self._counts()
        used = {name: [b - a for a, b in zip(self._before[name], now[name], strict=True)] for name in now}
        cpu = [round(1000 * each) for each in used["cpu_s"]]
        written, peers = used["written"], len(self._peers)
        return {
            "seconds": round(seconds, 2),
            "records": round(used["position"][0]),
            "appends": [round(each) for each in used["appends"]],
            "peers_cpu_ms": cpu[:peers],
            "zookeeper_cpu_ms": sum(cpu[peers:-1]),
            "clients_cpu_ms": cpu[-1],
            "peers_written_kib": [round(each / 1024) for each in written[:peers]],
            "zookeeper_written_kib": round(sum(written[peers:]) / 1024),
        }

    def _counts(self) -> dict[str, list[float]]:
        pids = [*self._peers, *self._servers]
        own = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": [*(cpu_seconds([pid]) for pid in pids), own.ru_utime + own.ru_stime],
            "written": [_written_bytes(pid) for pid in pids],
            "position": [max(self._cluster.metric("onyxq_log_position"))],
            "appends": self._cluster.metric("onyxq_log_append_seconds_count"),
        }


def _written_bytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/io").read_text("ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("write_bytes:")))


def measured(cluster: Cluster, load: Load, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one load after a warm-up of half its length."""
    system = OnCluster(cluster, load.clients)

    def drive(seconds: float) -> dict[str, Any]:
        return lifecycle(system, load.mode, seconds=seconds, warmup_s=0.0, payload_bytes=PAYLOAD_BYTES)

    progress(f"{len(cluster.peers)} peers: {load.mode} by {load.clients}")
    drive(options.seconds / 2)
    usage = Usage(cluster)
    tasks = drive(options.seconds)["tasks"]
    return {"tasks": tasks, **usage.since()}


@contextmanager
def started(
    peers: int, options: argparse.Namespace, *, partitions: int = PARTITIONS, program: str = "onyxq"
) -> Iterator[Cluster]:
    """Start a cluster and wait until all its copies are complete."""
    progress(f"{peers} peers, {partitions} partitions, {program}: starting")
    timeout = ("--session-timeout-ms", str(SESSION_TIMEOUT_MS))
    with running(
        peers, options.directory, zookeepers=1, partitions=partitions, options=timeout, program=program.split()
    ) as cluster:
        trio.run(_until_whole, cluster.addresses, peers)
        yield cluster


def figures(cluster: Cluster, modes: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a cluster under each load."""
    found = {text: measured(cluster, Load.parse(text), options) for text in modes.split(",")}
    return {"peers": len(cluster.peers), "modes": found}


def idle(cluster: Cluster) -> dict[str, Any]:
    """Measure a cluster without a client."""
    usage = Usage(cluster)
    time.sleep(IDLE_S)
    return usage.since()


def empty_records(cluster: Cluster, per_s: int, seconds: float) -> dict[str, Any]:
    """Measure what records without entries cost; this process appends them."""
    assert cluster.zookeeper is not None
    progress(f"{len(cluster.peers)} peers: {per_s} records a second without entries")
    usage = Usage(cluster)
    trio.run(_append, cluster.zookeeper.hosts, per_s, seconds)
    return {"per_s": per_s, **usage.since()}


async def _append(hosts: str, per_s: int, seconds: float) -> None:
    session = await ZookeeperBackend(hosts, "main").session()
    try:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(1, round(per_s * seconds) + 1):
                await trio.sleep_until(began + number / per_s)
                nursery.start_soon(session.append, encode_record("", "bench", number, 0, []))
    finally:
        await session.aclose()


async def _until_whole(addresses: list[str], peers: int) -> None:
    async with AsyncClient(addresses) as client:
        await until_whole(client, peers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--peers", type=_numbers, default="3,6,12", metavar="N", help="comma-separated numbers of peers"
    )
    parser.add_argument("--readers", type=int, default=6, metavar="N", help="peers on one partition")
    parser.add_argument(
        "--paced", type=_numbers, default="6,12", metavar="N", help="numbers of peers with slower paces"
    )
    parser.add_argument("--modes", default=MODES, help="comma-separated BATCHxLANES/CLIENTS")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="length of each measurement")
    parser.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = parser.parse_args()
    end_on_signal()
    document: dict[str, Any] = {"benchmark": "scale", "machine": machine(), "settings": _settings(options)}
    document["simulated"] = [simulated(peers) for peers in PEERS]
    document["clusters"] = []
    for peers in options.peers:
        with started(peers, options) as cluster:
            document["clusters"].append({"idle": idle(cluster), **figures(cluster, options.modes, options)})
    with started(options.readers, options, partitions=1) as cluster:
        document["readers"] = figures(cluster, READER_MODES, options)
        document["empty"] = [empty_records(cluster, per_s, options.seconds / 2) for per_s in EMPTY_PER_S]
    document["paced"] = []
    for peers in options.paced:
        for program in ("onyxq", f"bench.pace {SLOWER}"):
            with started(peers, options, program=program) as cluster:
                document["paced"].append({"program": program, **figures(cluster, PACED_MODES, options)})
    emit(document)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "loads": "BATCHxLANES/CLIENTS: all clients are in one process, and have the peers as coordinators in turn",
        "seconds": options.seconds,
        "partitions": PARTITIONS,
        "copies": COPIES,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "simulated": {"entries_per_s": ENTRIES_PER_S, "append_s": APPEND_S, "seconds": SIMULATED_S},
    }


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


if __name__ == "__main__":
    main()
