"""What the replica says, for operators: peers, cluster, ring, partitions, queues, log."""

from __future__ import annotations

from typing import Any

from onyxq.cli.context import Context
from onyxq.errors import NotFound

QUEUE_STATES = ("total", "ready", "claimed", "scheduled", "completed", "failed", "cancelled")


def peer_list(context: Context) -> None:
    """Peers, then nodes that have none."""
    found = context.call("peers")
    columns = ("peer", "node", "address", "http", "zone", "slots", "state", "clock_skew_ms")
    context.out.table(found, found["peers"], columns, empty="no peers")
    absent = [node for node in found["nodes"] if not node["peer"]]
    if absent and not context.out.as_json:
        context.out.note("absent nodes: " + ", ".join(node["node"] for node in absent))


def peer_leave(context: Context) -> None:
    """Drain a peer."""
    context.call("leave", {"peer": context.args.peer, "permanent": context.args.permanent})
    context.out.result({"peer": context.args.peer, "leaving": True}, "leaving")


def cluster_show(context: Context) -> None:
    """Name, settings and health of the cluster."""
    found = context.call("cluster")
    if context.out.as_json:
        context.out.document(found)
        return
    shown = {key: value for key, value in found.items() if key not in ("settings", "members")}
    context.out.fields({**shown, **found["settings"], "members": _flat(found["members"])})


def ring_show(context: Context) -> None:
    """Members of the ring and joiners."""
    found = context.call("ring")
    columns = ("peer", "node", "watches", "state")
    context.out.table(found, found["members"], columns, empty="nobody is in the ring")
    if not context.out.as_json:
        waiting = f"; waiting to join: {', '.join(found['queue'])}" if found["queue"] else ""
        context.out.note(f"closed: {'yes' if found['closed'] else 'no'}{waiting}")


def partition_list(context: Context) -> None:
    """Every partition."""
    found = context.call("partitions")
    context.out.table(found, found["partitions"], _PARTITION)


def partition_show(context: Context) -> None:
    """One partition; `NotFound` if the cluster has no such one."""
    number = context.args.partition
    for partition in context.call("partitions")["partitions"]:
        if partition["partition"] == number:
            context.out.fields(partition)
            return
    raise NotFound(f"there is no partition {number}", field="partition")


_PARTITION = ("partition", "leader_node", "epoch", "ready", "members", "target", "under_replicated")


def queue_list(context: Context) -> None:
    """Every queue with its depth."""
    found = context.call("queues")
    columns = ("queue", *QUEUE_STATES, "oldest_ready")
    context.out.table(found, map(_queue_row, found["queues"]), columns, empty="no queues")


def queue_show(context: Context) -> None:
    """One queue; `NotFound` if there is none of that name."""
    for queue in context.call("queues")["queues"]:
        if queue["queue"] == context.args.queue:
            context.out.fields(queue if context.out.as_json else _queue_row(queue))
            return
    raise NotFound(f"there is no queue {context.args.queue!r}", field="queue", hint="A queue is there with its tasks.")


def log_gc(context: Context) -> None:
    """Snapshot and trim; returns once the log is trimmed."""
    context.out.fields(context.call("gc"))


def _queue_row(queue: dict[str, Any]) -> dict[str, Any]:
    age_ms = queue["oldest_ready_ms"]
    age = "" if age_ms is None else f"{age_ms / 1000:.0f}s"
    return {"queue": queue["queue"], **queue["depth"], "oldest_ready": age}


def _flat(members: list[Any]) -> list[str]:
    return [str(one["peer"]) if isinstance(one, dict) else str(one) for one in members]
