"""Views for operators: peers, cluster, ring, partitions and queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from onyxq.core.errors import OnyxqError
from onyxq.history import words
from onyxq.interfaces.cli.context import Context, age
from onyxq.interfaces.cli.operations import answered
from onyxq.operations.table.missing_workers import missing_worker, still_queues
from onyxq.operations.table.queue import QueueView


def queue_list(context: Context) -> None:
    """Print all queues, and which of them lack a worker."""
    _note_missing_workers(context, answered(context).queues)


def queue_show(context: Context) -> None:
    """Print one queue, and whether it lacks a worker."""
    _note_missing_workers(context, [answered(context)])


def _note_missing_workers(context: Context, queues: Sequence[QueueView]) -> None:
    names = still_queues(queues)
    if not names or context.out.as_json:
        return
    with suppress(OnyxqError):  # a credential may be for some queues only
        missing = missing_worker(names, context.call("workers"))
        if missing is not None:
            context.out.note(f"{missing.problem}. {missing.hint}")


def peer_list(context: Context) -> None:
    """Print the peers, and the nodes that are leaving or absent."""
    found = context.call("peers")
    columns = ("peer", "node", "address", "http", "zone", "slots", "state", "copies", "leads", "clock_skew_ms")
    context.out.table(found, found["peers"], columns, empty="no peers")
    leaving = [node for node in found["nodes"] if node["leaving"]]
    if leaving and not context.out.as_json:
        shown = (f"{node['node']} ({node['copies']} partitions left)" for node in leaving)
        context.out.note("leaving permanently: " + ", ".join(shown))
    absent = [node for node in found["nodes"] if not node["peer"]]
    if absent and not context.out.as_json:
        context.out.note("nodes without a peer: " + ", ".join(node["node"] for node in absent))


def worker_list(context: Context) -> None:
    """Print the workers, those with the most claims first."""
    found = context.call("workers")
    rows = [{**one, "next_lease_ends_in": age(one["next_deadline_in_ms"])} for one in found["workers"]]
    worker_table(context, found, rows, ("worker", "claimed", "next_lease_ends_in", "waits", "waits_for"))
    if context.out.as_json:
        return
    if rest := found["all"] - len(rows):
        context.out.note(f"and {rest} more workers")
    if found["silent"]:
        context.out.note("nodes that did not answer: " + ", ".join(found["silent"]))


def worker_table(context: Context, found: Any, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print workers: on a terminal whether each is busy, how many tasks it has, and where it waits for tasks."""
    if context.out.on_terminal:
        rows = [{**one, "state": words.worker_state(one), "tasks": one["claimed"]} for one in rows]
        columns = ("worker", "state", "tasks", "waits_for", *(one for one in columns if one == "next_lease_ends_in"))
    context.out.table(found, rows, columns, empty="no workers")


def cluster_show(context: Context) -> None:
    """Print name, settings and health of the cluster."""
    found = context.call("cluster")
    if context.out.as_json:
        context.out.document(found)
        return
    shown = {key: value for key, value in found.items() if key not in ("settings", "members")}
    context.out.fields({**shown, **found["settings"], "members": _flat(found["members"])})


def ring_show(context: Context) -> None:
    """Print the members of the ring and the peers that join it."""
    found = context.call("ring")
    columns = ("peer", "node", "watches", "state")
    context.out.table(found, found["members"], columns, empty="no members")
    if not context.out.as_json:
        waiting = f"; waiting to join: {', '.join(found['queue'])}" if found["queue"] else ""
        context.out.note(f"ring closed: {'yes' if found['closed'] else 'no'}{waiting}")


def partition_list(context: Context) -> None:
    """Print all partitions."""
    found = context.call("partitions")
    rows = ({**one, "transfers": [_transfer(to) for to in one["transfers"]]} for one in found["partitions"])
    context.out.table(found, rows, _PARTITION)


_PARTITION = ("partition", "leader_node", "epoch", "ready", "members", "target", "under_replicated", "transfers")


def _transfer(to: dict[str, Any]) -> str:
    if to["rows_left"] is None:
        return f"{to['node']}: waits"
    left = "" if to["seconds_left"] is None else f", {to['seconds_left']}s"
    return f"{to['node']}: {to['rows_done']} rows, {to['bytes_done']} bytes, {to['rows_left']} rows left{left}"


def _flat(members: list[Any]) -> list[str]:
    return [str(one["peer"]) if isinstance(one, dict) else str(one) for one in members]
