"""Measures what a task and a record cost each process of a cluster, with few peers and with many.

    python -m bench.scale [--parts clusters,readers] [--seconds 6]

Peers on one ZooKeeper go through the loop of `bench.lifecycle`. Only processor time is counted, from
the kernel's count for each process, and compared with the number of tasks and records. So other
programs on the machine change the figures little. These parts are measured:

* ``simulated``: only outboxes, on a clock that jumps (`bench.pace`);
* ``clusters``: 3, 6 and 12 peers;
* ``readers``: what a record costs a peer that only reads it. The cluster has one partition, so all peers
  but three keep no task. Then records without entries are appended at several rates;
* ``steps``: the records of three peers, applied again in this process;
* ``paced``: 6 and 12 peers as they are, and with outboxes that pause more.

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
from log_entries.registry import ENTRIES
from onyxq.client import AsyncClient
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_record
from onyxq.core.replica import EMPTY
from onyxq.core.step import step
from onyxq.log.zookeeper import ZookeeperBackend

PAYLOAD_BYTES = 100
COPIES = 3
MODES = "1x64/1,100x4/1,1x64/16,100x16/16"
READER_MODES = "1x8/1,1x64/1,100x4/1"
STEP_MODES = "1x64/1,1x64/16,100x16/16"
PACED_MODES = "1x64/16,1x512/16"
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
    return {text: measured(cluster, Load.parse(text), options) for text in modes.split(",")}


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
    parser.add_argument("--parts", type=_parts, default=",".join(PARTS), help="comma-separated; default: all")
    parser.add_argument(
        "--peers", type=_numbers, default="3,6,12", help="comma-separated numbers of peers, also repeated ones"
    )
    parser.add_argument("--readers", type=int, default=6, help="number of peers on one partition")
    parser.add_argument("--paced", type=_numbers, default="6,12", help="numbers of peers that pace themselves more")
    parser.add_argument("--pace", default="31.25,0.128,3.2", help="FREE_PER_S,PAUSE_PER_RATE_S,PAUSE_MAX_S of those")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="S", help="length of each measurement")
    parser.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = parser.parse_args()
    end_on_signal()
    head = {"benchmark": "scale", "machine": machine(), "settings": _settings(options)}
    found: dict[str, Any] = {}
    for part in options.parts:
        found.update(PARTS[part](options))
    emit({**head, **found})


def _simulated(options: argparse.Namespace) -> dict[str, Any]:
    return {"simulated": [simulated(peers) for peers in PEERS]}


def _clusters(options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for peers in options.peers:
        with started(peers, options) as cluster:
            found.append({"peers": peers, "idle": idle(cluster), "modes": figures(cluster, MODES, options)})
    return {"clusters": found}


def _readers(options: argparse.Namespace) -> dict[str, Any]:
    with started(options.readers, options, partitions=1) as cluster:
        loads = {"peers": options.readers, "idle": idle(cluster), "modes": figures(cluster, READER_MODES, options)}
        empty = [empty_records(cluster, per_s, options.seconds / 2) for per_s in EMPTY_PER_S]
    return {"readers": [loads], "empty": empty}


def _paced(options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for peers, pace in itertools.product(options.paced, ("", options.pace)):
        program = f"bench.pace {pace.replace(',', ' ')}" if pace else "onyxq"
        with started(peers, options, program=program) as cluster:
            found.append({"peers": peers, "pace": pace, "modes": figures(cluster, PACED_MODES, options)})
    return {"paced": found}


def _steps(options: argparse.Namespace) -> dict[str, Any]:
    with started(COPIES, options) as cluster:
        assert cluster.zookeeper is not None
        ends = [int(max(cluster.metric("onyxq_log_position")))]
        for text in STEP_MODES.split(","):
            measured(cluster, Load.parse(text), options)
            ends.append(int(max(cluster.metric("onyxq_log_position"))))
        records = trio.run(_all_records, cluster.zookeeper.hosts, ends[-1])
    replica, found = EMPTY, []
    for end, name in zip(ends, ["start", *STEP_MODES.split(",")], strict=True):
        entries = grants = count = 0
        before = time.process_time()
        while replica.position < end:
            done = step(replica, records[replica.position + 1], ENTRIES)
            replica, count, entries = done.replica, count + 1, entries + len(done.outcomes)
            grants += sum(len(one.args.grants) for one in done.outcomes if one.name == "grant_claims")
        used_ms = round(1000 * (time.process_time() - before), 1)
        found.append({"load": name, "records": count, "entries": entries, "grants": grants, "cpu_ms": used_ms})
    return {"steps": found[1:]}


async def _all_records(hosts: str, end: int) -> dict[int, Record]:
    session = await ZookeeperBackend(hosts, "main").session()
    try:
        found = [await session.read(position) for position in range(end + 1)]
    finally:
        await session.aclose()
    return {one.position: one for one in found if isinstance(one, Record)}


PARTS = {"simulated": _simulated, "clusters": _clusters, "readers": _readers, "steps": _steps, "paced": _paced}


def _parts(text: str) -> list[str]:
    unknown = set(parts := text.split(",")) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {sorted(unknown)}; there are {', '.join(PARTS)}")
    return parts


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
