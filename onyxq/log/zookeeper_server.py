"""A real ZooKeeper on this machine, for trying, testing and measuring.

The log of a production cluster lives in a ZooKeeper that others run.  This module only starts
one server (or an ensemble of three) on loopback from the jars that pyspark brings.  The
servers are children of this process.  They are ended by process id.  The kernel's parent-death
signal ends them even when this process is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import trio

from onyxq.core.errors import Conflict, Incomplete
from onyxq.system.directories import usable
from onyxq.system.java import find_java
from onyxq.system.parent_death import killed_with_parent

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
TICK_MS = 500
SESSION_TIMEOUT_MIN_MS, SESSION_TIMEOUT_MAX_MS = 1_000, 60_000
HEAP_MIB = 128

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Only what the server loads: opening all of pyspark's jars doubles the time to start.
_JARS = ("zookeeper-*.jar", "slf4j-api-*.jar", "log4j-*.jar", "netty-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")


def find_jars() -> list[str]:
    """Return the jars that a server needs, found in the installed pyspark without importing it.

    Raises `Incomplete` if pyspark or its ZooKeeper is missing.
    """
    hint = "Install it with: pip install 'onyxq[spark]' (pyspark 4.3 brings ZooKeeper 3.9)."
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise Incomplete("ZooKeeper comes with pyspark, which is not installed", hint=hint)
    jars = Path(next(iter(spec.submodule_search_locations))) / "jars"
    if not any(jars.glob("zookeeper-[0-9]*.jar")):
        raise Incomplete(f"there is no ZooKeeper among the jars in {jars}", hint=hint)
    return sorted({str(jar) for pattern in _JARS for jar in jars.glob(pattern)})


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reserve(port: int) -> socket.socket:
    """Return a socket that reserves a port for the servers, which also reuse addresses.

    While it is open, even if its server is dead, no other process gets the port: neither as a free
    port nor as a client's own end.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        keeper.bind(("127.0.0.1", port))
    except OSError as error:
        keeper.close()
        raise Conflict(
            f"port {port} cannot be used: {error.strerror}",
            field="port",
            hint="Choose another --port (0: a free one).",
        ) from None
    return keeper


class ZookeeperServer:
    """One server, or an ensemble of three, on 127.0.0.1; use it with ``with`` or ``async with``.

    ``port`` is the first server's client port (0: a free one), the others get free ones.
    ``java`` and ``settings``: more options of Java, and lines of the configuration.
    Start it from a thread that lives as long as the servers shall: the kernel's
    parent-death signal is sent when the *thread* that started them ends.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        servers: int = 1,
        port: int = 0,
        java: Sequence[str] = (),
        settings: Sequence[str] = (),
    ) -> None:
        if servers not in (1, 3):
            raise ValueError("an ensemble has 1 or 3 servers")
        self._dir = Path(data_dir)
        self._settings = list(settings)
        self._command = [
            find_java(),
            f"-Xmx{HEAP_MIB}m",
            "-XX:+UseSerialGC",
            "-Dlog4j2.level=WARN",
            "-Dzookeeper.admin.enableServer=false",
            *java,
            "-cp",
            os.pathsep.join(find_jars()),
            _MAIN,
        ]
        self.ports = [port or free_port(), *(free_port() for _ in range(servers - 1))]
        self._peer_ports = [(free_port(), free_port()) for _ in range(servers)] if servers > 1 else []
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * servers
        self._reserved = contextlib.ExitStack()

    @property
    def hosts(self) -> str:
        """Connection string: ``127.0.0.1:PORT``, one per server, comma-separated."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running servers."""
        return [process.pid for process in self._processes if process is not None]

    # --- starting and stopping ---------------------------------------------------

    def start(self) -> None:
        """Start all servers and wait until they serve.

        Raises `Incomplete` if they do not, and `Conflict` if a port is taken.
        """
        try:
            self._spawn_all()
            for waited in self._wait_ready():
                time.sleep(waited)
        except BaseException:
            self.stop()
            raise

    async def start_async(self) -> None:
        """Start the servers as `start` does, without blocking the event loop."""
        try:
            self._spawn_all()
            for waited in self._wait_ready():
                await trio.sleep(waited)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every server, by process id, and wait until they are gone."""
        running = [process for process in self._processes if process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = [None] * len(self._processes)
        self._reserved.close()

    def __enter__(self) -> ZookeeperServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> ZookeeperServer:
        await self.start_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- faults, for tests --------------------------------------------------------

    def pause(self, server: int = 0) -> None:
        """Freeze a server (SIGSTOP), and return once it is stopped."""
        process = self._running(server)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self, server: int = 0) -> None:
        """Resume a frozen server."""
        self._running(server).send_signal(signal.SIGCONT)

    def kill(self, server: int = 0) -> None:
        """Kill a server at once (SIGKILL); `spawn` starts it again on its data."""
        process = self._running(server)
        process.kill()
        process.wait()
        self._processes[server] = None

    def spawn(self, server: int = 0) -> None:
        """Start one server without waiting until it serves."""
        home = self._dir / f"server-{server + 1}"
        config = self._configure(server, home)
        with open(home / "zookeeper.log", "ab") as log:
            self._processes[server] = subprocess.Popen(
                [*self._command, str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own group: Ctrl-C in a terminal must reach only this process, which ends the server in order.
                start_new_session=True,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )

    def leader(self) -> int:
        """Return the number of the server that leads the ensemble (0 for a single one); -1 if none does now."""
        for server, port in enumerate(self.ports):
            if self._processes[server] is not None and _mode(port) in ("leader", "standalone"):
                return server
        return -1

    def _running(self, server: int) -> subprocess.Popen[bytes]:
        process = self._processes[server]
        if process is None:
            raise ValueError(f"server {server} does not run")
        return process

    def _spawn_all(self) -> None:
        for port in [*self.ports, *(port for pair in self._peer_ports for port in pair)]:
            self._reserved.enter_context(_reserve(port))  # else a foreign server on it would be taken for ours
        for server in range(len(self.ports)):
            self.spawn(server)

    def _wait_ready(self) -> Iterator[float]:
        """Yield seconds to sleep until every server serves."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for server, port in enumerate(self.ports):
            while not _mode(port):
                code = self._running(server).poll()
                if code is not None or time.monotonic() > deadline:
                    raise Incomplete(
                        f"ZooKeeper on port {port} "
                        + (
                            f"ended with code {code}"
                            if code is not None
                            else f"is not up after {START_TIMEOUT_S:.0f} s"
                        ),
                        hint=f"See {self._dir / f'server-{server + 1}' / 'zookeeper.log'}.",
                    )
                yield 0.05

    def _configure(self, server: int, home: Path) -> Path:
        data = usable(home / "data", "data")
        lines = [
            f"dataDir={data}",
            f"clientPort={self.ports[server]}",
            "clientPortAddress=127.0.0.1",
            f"tickTime={TICK_MS}",
            f"minSessionTimeout={SESSION_TIMEOUT_MIN_MS}",
            f"maxSessionTimeout={SESSION_TIMEOUT_MAX_MS}",
            "admin.enableServer=false",
            "maxClientCnxns=0",
            "4lw.commands.whitelist=srvr,ruok",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
            *self._settings,
        ]
        if self._peer_ports:
            lines += ["initLimit=20", "syncLimit=10"]
            lines += [f"server.{n + 1}=127.0.0.1:{a}:{b}" for n, (a, b) in enumerate(self._peer_ports)]
            (data / "myid").write_text(f"{server + 1}\n")
        config = home / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        return config


def _mode(port: int) -> str:
    """Return ``standalone``, ``leader`` or ``follower``; empty while the server does not serve."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as stream:
            stream.sendall(b"srvr")
            answer = b"".join(iter(lambda: stream.recv(4096), b""))
    except OSError:
        return ""
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ")
    return ""
