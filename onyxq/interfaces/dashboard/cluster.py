"""The ring as a drawing, peers and nodes, and the nodes of each partition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from starlette.responses import Response

from onyxq.interfaces.dashboard.page import shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call

MIDDLE, RADIUS = 180, 130
"""Middle and radius of the drawing, in its units."""
GAP = 0.16
"""Gap between an arrow and its peers if there are few, in radians."""


@frozen
class Place:
    """A peer in the drawing."""

    peer: str
    state: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str


@frozen
class Arrow:
    """A peer that watches another, as the path of an arc or a line."""

    watcher: str
    watched: str
    path: str


async def get_cluster(call: Call) -> Response:
    """Answer with the page."""
    ring = await call.ask("ring")
    peers = await call.ask("peers")
    partitions = (await call.ask("partitions"))["partitions"]
    troubled = [one for one in partitions if trouble(one)]
    places, arrows = drawn(ring["members"])
    return page(
        call,
        "cluster.html",
        title="Cluster",
        here="/ui/cluster",
        ring=ring,
        places=places,
        arrows=arrows,
        size=2 * MIDDLE,
        peers=peers["peers"],
        nodes=peers["nodes"],
        log_time_ms=(await call.ask("cluster"))["log_time_ms"],
        partitions=sorted(partitions, key=lambda one: not trouble(one)),
        trouble=trouble,
        troubled=len(troubled),
        lost=[one["partition"] for one in troubled if trouble(one) != "too few copies"],
    )


def trouble(partition: Mapping[str, Any]) -> str:
    """Return what is wrong with a partition; empty if it serves with all its copies."""
    if not partition["leader"]:
        return "no leader"
    if not partition["ready"]:
        return "takeover"
    return "too few copies" if partition["under_replicated"] else ""


def drawn(members: Sequence[Mapping[str, Any]]) -> tuple[list[Place], list[Arrow]]:
    """Return members on a circle, clockwise from the top, each beside the one that it watches, and their arrows."""
    angles = {one["peer"]: 2 * math.pi * place / len(members) for place, one in enumerate(members)}
    places = [_place(one, angles[one["peer"]]) for one in members]
    arrows = [
        Arrow(one["peer"], watched, _path(angles[one["peer"]], angles[watched]))
        for one in members
        for watched in one["watches"]
        if watched in angles
    ]
    return places, arrows


def _place(member: Mapping[str, Any], angle: float) -> Place:
    x, y = _point(angle, RADIUS)
    label_x, label_y = _point(angle, RADIUS + 22)
    side = math.sin(angle)
    anchor = "middle" if abs(side) < 0.2 else ("start" if side > 0 else "end")
    return Place(member["peer"], member["state"], x, y, label_x, label_y + 4, anchor)


def _point(angle: float, radius: float) -> tuple[float, float]:
    return round(MIDDLE + radius * math.sin(angle), 1), round(MIDDLE - radius * math.cos(angle), 1)


def _path(start: float, end: float) -> str:
    turn = (end - start) % (2 * math.pi)
    gap = min(GAP, turn / 4)
    (x1, y1), (x2, y2) = _point(start + gap, RADIUS), _point(end - gap, RADIUS)
    return f"M {x1} {y1} A {RADIUS} {RADIUS} 0 {int(turn > math.pi)} 1 {x2} {y2}"


ENDPOINTS = (shows("/ui/cluster", "cluster_page", get_cluster),)
