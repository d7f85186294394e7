"""Health of a node: whether it is ready, and its metrics."""

from __future__ import annotations

from collections import Counter

from onyxq.node.all_leaders import AllLeaders
from onyxq.node.jobs.driver import Driving
from onyxq.node.node import Node
from onyxq.operations.admission import Admission
from onyxq.operations.table.cluster import GetHealth, GetMetrics, MetricsText
from onyxq.operations.table.cluster import Health as HealthView
from onyxq.operations.task_reads import Reading, named


class Health:
    """Serves ``health`` and ``metrics``; ``driver``: if the node hosts Spark."""

    def __init__(
        self, node: Node, reading: Reading, leaders: AllLeaders, admission: Admission, driver: Driving | None
    ) -> None:
        self._node = node
        self._reading = reading
        self._leaders = leaders
        self._admission = admission
        self._driver = driver

    async def health(self, args: GetHealth) -> HealthView:
        """Return whether the node is live and ready, and why it is not ready."""
        node = self._node
        reasons = []
        if node.replica.cluster is None or not node.peer_id:
            reasons.append("no peer of this node is in the log")
        elif node.peer_id not in node.replica.ring.members:
            reasons.append("the peer is joining the ring")
        if node.went_back is not None:
            reasons = [f"{node.went_back.message}; nothing is granted. {node.went_back.advice.rstrip('.')}"]
        elif not node.log_connected:
            reasons.append("the log cannot be reached")
        if refusal := node.store.condition.refusal:
            reasons.append(f"the store cannot be written: {refusal}")
        return HealthView(
            live=True,
            ready=not reasons,
            reasons=reasons,
            log_connected=node.log_connected,
            log_went_back=node.went_back is not None,
            log_lag=node.log_lag,
            position=node.replica.position,
        )

    async def metrics(self, args: GetMetrics) -> MetricsText:
        """Return the metrics of the node, with gauges as of now, in Prometheus' text format."""
        node, metrics = self._node, self._node.metrics
        metrics.log_position.set(node.replica.position)
        metrics.log_lag_entries.set(node.log_lag)
        metrics.log_went_back.set(int(node.went_back is not None))
        metrics.writes_refused.set(self._admission.refused)
        self._sync_metrics()
        metrics.store_writable.set(int(not node.store.condition.refusal))
        if self._driver is not None:
            metrics.spark_host_up.set(int(self._driver.host_state == "up"))
            metrics.jobs_driven.replace({(state,): n for state, n in self._driver.states().items()})
            self._driver.show_series()
        metrics.partition_leader.replace({(str(number),): int(one.ready) for number, one in node.leaders.items()})
        depths: dict[tuple[str, ...], float] = {}
        oldest: dict[tuple[str, ...], float] = {}
        for queue, counts in self._reading.local_counts(None, self._leaders.led()).items():
            for state, count in named(counts).items():
                if state != "total":
                    depths[queue, state] = count
            due_ms = node.granter.heads.oldest_due_ms(queue)
            if due_ms is not None:
                oldest[queue,] = max(0, node.wall_ms() - due_ms) / 1000
        metrics.queue_depth.replace(depths)
        metrics.queue_oldest_seconds.replace(oldest)
        return MetricsText(text=metrics.text())

    def _sync_metrics(self) -> None:
        """Set the gauges of the rows that other nodes lack of partitions led here."""
        rows: dict[tuple[str, ...], float] = {}
        partitions: dict[tuple[str, ...], float] = {}
        waits = Counter(self._node.operations.purger.waits.values())
        self._node.metrics.purge_waits.replace({(why,): count for why, count in waits.items()})
        for transfers in self._node.transfers_here().values():
            for one in transfers:
                node = (one["node"],)
                rows[node] = rows.get(node, 0) + (one["rows_left"] or 0)
                partitions[node] = partitions.get(node, 0) + 1
        self._node.metrics.sync_rows_left.replace(rows)
        self._node.metrics.sync_partitions_left.replace(partitions)
