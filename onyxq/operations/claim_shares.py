"""Shares of a large claim for the nodes that have ready tasks (design: claims). Pure.

Nodes list their best tasks by priority and age. Merged, these lists give the number of the best tasks at each node.
So no node is skipped while it has a better task than those that are claimed elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from onyxq.leader.grants.ready_heads import RANKS_MAX, Head, is_ahead


class Offer(NamedTuple):
    """The ready tasks of one queue at one node."""

    node_id: str
    queue: str
    head: Head


Taken = list[tuple[Offer, Head | None]]
"""Offers from which tasks are claimed, and the rest of each."""


def shares(offers: Sequence[Offer], best: Offer, maximum: int) -> tuple[Taken, dict[str, int]]:
    """Return what is left of the offers, and how many of the ``maximum`` tasks to claim at which node.

    ``best`` is the best of them. It also gets the tasks that no list has, because lists may be old.
    """
    ranks = best.head.ranks
    if len(offers) == 1 or is_ahead(best.head) or (ranks and ranks[0][2] >= maximum):
        return [(best, without(best.head, maximum))], {best.node_id: maximum}
    counts = _counts(offers, maximum)
    place, left = offers.index(best), maximum - sum(counts.values())
    if left and not any(_ends(offers[at], count) for at, count in counts.items()):
        counts[place] = counts.get(place, 0) + left
    found: dict[str, int] = {}
    for at, count in counts.items():
        found[offers[at].node_id] = found.get(offers[at].node_id, 0) + count
    return [(offers[at], without(offers[at].head, count)) for at, count in counts.items()], found


def _counts(offers: Sequence[Offer], maximum: int) -> dict[int, int]:
    """Return the number of the best tasks of each offer, by its place, until ``maximum`` or the end of a list.

    Tasks after an incomplete list may be better than those of other nodes. So the rest is claimed there, unless the
    list has the greatest length.
    """
    counts: dict[int, int] = {}
    lists = [[(rank, at) for rank in offer.head.ranks] for at, offer in enumerate(offers)]
    left = maximum
    for (_, _, tasks), at in heapq.merge(*lists):
        counts[at] = counts.get(at, 0) + min(tasks, left)
        left -= min(tasks, left)
        head = offers[at].head
        if left and not head.whole and counts[at] >= _listed(head):
            counts[at] += left if len(head.ranks) < RANKS_MAX else 0
            break
        if not left:
            break
    return counts


def _listed(head: Head) -> int:
    return sum(tasks for _, _, tasks in head.ranks)


def _ends(offer: Offer, count: int) -> bool:
    """Return whether a list of the greatest length was claimed to its end."""
    return not offer.head.whole and len(offer.head.ranks) >= RANKS_MAX and count >= _listed(offer.head)


def without(head: Head, count: int) -> Head | None:
    """Return what is left of a head if ``count`` of its tasks are claimed; None if nothing is known to be."""
    about, ranks, place = head.about - count, head.ranks, 0
    while place < len(ranks) and ranks[place][2] <= count:
        count -= ranks[place][2]
        place += 1
    if place < len(ranks):
        priority, due_ms, tasks = ranks[place]
        left = ((priority, due_ms, tasks - count), *ranks[place + 1 :])
        return Head(priority, due_ms, max(about, 1), left, head.whole)
    return head._replace(about=about, ranks=()) if about > 0 and not head.whole else None
