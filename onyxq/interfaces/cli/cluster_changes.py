"""What operators change: peers that leave, partitions that are forced."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest, NotFound, OnyxqError, Unavailable
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.client import Client

LOOK_EVERY_S = 0.5
SILENT_S = 30.0
"""So long may nobody answer while copies move."""

LOSS = (
    "every task, update and completion that only the nodes given up hold is lost: tasks vanish, and completed "
    "ones may run again"
)


def peer_leave(context: Context) -> None:
    """Drain a peer; for good: return once other nodes hold its copies and it has left."""
    peer, permanent = context.args.peer, context.args.permanent
    with context.client() as client:
        node = _node_of(client, peer)
        told = client.call("leave", {"peer": peer, "permanent": permanent})
        if told.get("warning"):
            context.out.note(f"warning: {told['warning']}")
        if not permanent or context.args.no_wait:
            context.out.result({"peer": peer, "leaving": True, **told}, "leaving")
            return
        _watch(context, client, peer, node)
    context.out.result({"peer": peer, "node": node, "left": True}, "left: other nodes hold all copies")


def _node_of(client: Client, peer: str) -> str:
    for found in client.call("peers", {})["peers"]:
        if found["peer"] == peer:
            return str(found["node"])
    raise NotFound(f"there is no peer {peer}", field="peer")


def _watch(context: Context, client: Client, peer: str, node: str) -> None:
    """Say how many partitions are left until the peer is gone; raises `Unavailable` if it went before that."""
    heard_at = time.monotonic()
    left, began = 0, 0
    while True:
        try:
            found = client.call("peers", {})
            heard_at = time.monotonic()
        except OnyxqError:
            # The peer that was asked may be the one that leaves.
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
                    f"peer {peer} ended while {left} partitions were still to move",
                    hint="If its node is back under another peer, ask for that one; see `onyxq peer list`.",
                )
            return
        context.out.progress(f"{left} of {began} partitions left to move", began - left, began)
        time.sleep(LOOK_EVERY_S)


def partition_force(context: Context) -> None:
    """Have a partition go on without the majority of its nodes."""
    number = context.args.partition
    placed: dict[str, Any] = context.call("partition", {"partition": number})
    if not context.args.yes:
        raise BadRequest(
            f"partition {number} would go on with those of its nodes that live: {LOSS}",
            field="yes",
            hint="Bring a majority of its nodes back if there is any way; else repeat with --yes.",
        )
    context.out.note(f"warning: {LOSS}; its members were {', '.join(placed['members'])}")
    found = context.call("partition.force", {"partition": number, "by": "onyxq partition force"})
    given_up = ", ".join(found["given_up"]) or "nobody"
    context.out.result(found, f"partition {number} goes on with {', '.join(found['members'])}; given up: {given_up}")
