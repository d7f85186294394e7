"""Faults of a cluster under test, and draining it.

This runs inside the simulation; `onyxq.testing.cluster` has the forms that tests use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from onyxq.core.errors import BadRequest
from onyxq.core.replica import majority
from onyxq.system.durations import Seconds, as_seconds
from onyxq.testing.base import Base
from onyxq.testing.clients import REQUESTS
from onyxq.testing.drain import Drained, drain
from onyxq.testing.workers import Plan, WorkerKilled

NOTICED_S_MAX = 600.0
"""Longest time for workers to see that their leases expired and their handlers to end, in simulated seconds."""
PAUSE_S = 0.01
"""Time that a kill takes, in simulated seconds."""


class Core(Base):
    """A cluster inside the simulation, with faults and draining."""

    async def kill_peer(self, name: str | None = None) -> str:
        """Kill a peer's process and return its machine's name; by default the peer that leads most partitions."""
        node = self.node(name)
        await self.world.crash_node(node)
        return node.name

    async def start_peer(self, name: str) -> None:
        """Start a peer on its machine again, and wait until the running peers serve all partitions they can.

        A partition with most of its members down cannot be served: it waits for its other peers.
        """
        node = self.node(name, running=False)
        if node.running is None:
            self.world.start_node(node)
        if all(node.running is not None for node in self.world.nodes):
            await self.world.settle()
        else:
            await self.world.until(self._serves_what_it_can, "the peers that run serve what they can")

    def _serves_what_it_can(self) -> bool:
        replica = self.world.audit.replica
        running = [node for node in self.world.nodes if node.running is not None]
        if set(replica.ring.members) != {node.peer_id for node in running} or not replica.partitions:
            return False
        up = {node.node_id for node in running}
        return all(placed.ready or not majority(placed.members, up) for placed in replica.partitions.values())

    async def settle(self) -> None:
        """Wait until every running peer is in the ring and every partition is served."""
        await self.world.settle()

    async def expire_session(self, name: str | None = None) -> str:
        """End a peer's session with the log and return its machine's name; it joins again as another peer."""
        node = self.node(name)
        self.world.expire_session(node)
        return node.name

    async def freeze_log(self, seconds: Seconds) -> None:
        """Make the log unreachable for this many simulated seconds, from now on."""
        if self.log_frozen:
            raise AssertionError("the log is frozen already")
        self.log_frozen = True
        self.world.log_down()
        self.nursery.start_soon(self._thaw_log, as_seconds(seconds, "seconds"))

    async def _thaw_log(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.log_frozen = False
        self.world.log_up()
        for node in self.world.nodes:
            if not node.log.reachable:
                self.world.disconnect_log(node)

    async def partition_network(self, names: Sequence[str], *, log: bool = True, clients: bool = True) -> None:
        """Cut these peers off from the other peers.

        ``log``: also from the log. ``clients``: also from clients and workers.
        """
        chosen = [self.node(name, running=False) for name in names]
        others = [name for name in self.peer_names() if name not in names]
        others += [machine.name for machine in self.machines] if clients else []
        self.world.network.part(names, others, newcomers=clients)
        for node in chosen if log else ():
            self.world.disconnect_log(node)

    async def heal_network(self) -> None:
        """Undo `partition_network`."""
        for node in self.world.nodes:
            if not node.log.reachable:
                self.world.reconnect_log(node)
        self.world.network.heal()

    async def lose_answers(self, times: int = 1, *, method: str | None = None) -> None:
        """Lose the answers to the next ``times`` requests: each takes effect, then the connection breaks.

        ``method``: lose only answers of this method.
        """
        if method is not None and method not in REQUESTS:
            raise BadRequest(f"{method!r} is not one of {', '.join(sorted(REQUESTS))}", field="method")
        self.losses.add(REQUESTS if method is None else frozenset((method,)), times)

    async def expire_leases(self) -> None:
        """Cut all workers off until every claim has expired, then connect them again."""
        workers = self.working()
        cut = self.world.network.part([worker.machine.name for worker in workers], self.peer_names())
        while self.world.audit.replica.claims:
            await trio.sleep(1.0)
        with trio.move_on_after(NOTICED_S_MAX):
            while any(worker.held for worker in workers):
                await trio.sleep(1.0)
        self.world.network.heal(cut)

    async def kill_worker(self, *, during: Any = None, after: Any = None) -> None:
        """Kill a worker now, or at the next run of a task; another one replaces it.

        ``during``: the task in which it dies, where the run first waits for something. ``after``: the task after which
        it dies, before the outcome is reported.
        """
        if during is None and after is None:
            found = [worker for worker in self.working() if worker.held] or self.working()
            if not found:
                raise AssertionError("no worker runs")
            self.kill(found[0])
            await trio.sleep(PAUSE_S)
            return
        for task, when in ((during, "during"), (after, "after")):
            if task is not None:
                self.plans.append(Plan(task if isinstance(task, str) else task.name, when))

    async def drain(self, *, reach_s: Seconds = 86_400, patience_s: Seconds = 600, runs_max: int = 10_000) -> Drained:
        """Run until no task is ready, claimed or due within ``reach_s`` simulated seconds.

        Raises `NotDrained` if no handler starts or ends for ``patience_s`` simulated seconds, or if handlers run more
        than ``runs_max`` times. It also does if a queue with ready tasks is paused or has no worker.
        """
        reach_s, patience_s = as_seconds(reach_s, "reach_s"), as_seconds(patience_s, "patience_s")
        return await drain(self, reach_s=reach_s, patience_s=patience_s, runs_max=runs_max)


def die_here(*_: object, **__: object) -> Any:
    """Kill the worker; use this in place of a function that a handler calls."""
    raise WorkerKilled("the worker dies here")
