"""Commands of operators: drain a peer, continue a partition without its majority, and purge a queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from onyxq.client.pool import RETRYABLE
from onyxq.core.errors import BadRequest, NotFound, Unavailable
from onyxq.core.texts import counted
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.client import Client

LOOK_EVERY_S = 0.5
SILENT_S = 30.0
"""Longest time without an answer while copies move, in seconds."""

LOSS = (
    "data that only the nodes without an answer have is lost: some tasks disappear, and some completed tasks "
    "may run again"
)


def peer_leave(context: Context) -> None:
    """Drain a peer. With ``--permanent``, wait until other nodes have its copies and it has left."""
    peer, permanent = context.args.peer, context.args.permanent
    with context.client() as client:
        node = _node_of(client, peer)
        answer = client.call("leave", {"peer": peer, "permanent": permanent})
        if answer.get("warning"):
            context.out.note(f"warning: {answer['warning']}")
        if not permanent or context.args.no_wait:
            context.out.result({"peer": peer, "leaving": True, **answer}, "leaving", people=f"{peer} is leaving")
            return
        _watch(context, client, peer, node)
    context.out.result({"peer": peer, "node": node, "left": True}, "left; other nodes have all its copies")


def _node_of(client: Client, peer: str) -> str:
    for found in client.call("peers", {})["peers"]:
        if found["peer"] == peer:
            return str(found["node"])
    raise NotFound(f"there is no peer {peer}", field="peer")


def _watch(context: Context, client: Client, peer: str, node: str) -> None:
    """Show how many partitions are left until the peer has left; raises `Unavailable` if it ended before that."""
    heard_at = time.monotonic()
    left, began = 0, 0
    while True:
        try:
            found = client.call("peers", {})
            heard_at = time.monotonic()
        except RETRYABLE:
            # The peer that answers may be the one that leaves. The client then finds another peer.
            if time.monotonic() - heard_at > SILENT_S:
                raise
            time.sleep(LOOK_EVERY_S)
            continue
        state = next((one for one in found["nodes"] if one["node"] == node), None)
        left = 0 if state is None else int(state["copies"])
        began = max(began, left)
        if state is None or state["peer"] != peer:
            if left:
                raise Unavailable(
                    f"peer {peer} ended before {left} of its partitions were moved",
                    hint="Look for its node in onyxq peer list, and repeat the command for the new peer id.",
                )
            return
        context.out.progress(f"{left} of {began} partitions left to move", began - left, began)
        time.sleep(LOOK_EVERY_S)


def partition_force(context: Context) -> None:
    """Continue a partition without the majority of its nodes."""
    number = context.args.partition
    placed: dict[str, Any] = context.call("partition", {"partition": number})
    if not context.args.yes:
        raise BadRequest(
            f"partition {number} would continue with the nodes that still run: {LOSS}",
            field="yes",
            hint="If possible, start a majority of its nodes again. Else repeat the command with --yes.",
        )
    context.out.note(f"warning: {LOSS}; its members were {', '.join(placed['members'])}")
    found = context.call("partition.force", {"partition": number, "by": "onyxq partition force"})
    given_up = ", ".join(found["given_up"]) or "none"
    context.out.result(
        found, f"partition {number} continues with {', '.join(found['members'])}; nodes given up: {given_up}"
    )


def queue_purge(context: Context) -> None:
    """Cancel the unfinished, unclaimed tasks of a queue; without ``--yes``, raise `BadRequest` with their number."""
    queue = context.args.queue
    with context.client() as client:
        if not context.args.yes:
            depth = client.call("queue.get", {"queue": queue, "known": True})["depth"]
            left = {name: depth[name] for name in ("ready", "scheduled", "waiting")}
            parts = ", ".join(f"{count} {name}" for name, count in left.items())
            problem = f"this would cancel {counted(sum(left.values()), 'task')} of {queue} ({parts})"
            raise BadRequest(problem, hint=f"To cancel them: onyxq queue purge {queue} --yes")
        count, more = 0, True
        while more:
            answer = client.call("queue.purge", {"queue": queue})
            count, more = count + answer["count"], answer["more"]
            context.out.progress(f"cancelled: {count}")
    people = f"cancelled {counted(count, 'task')} of {queue}"
    context.out.result({"queue": queue, "count": count}, f"cancelled: {count}", people=people)
