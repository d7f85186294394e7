"""Pairs of numbers kept sorted, as nested tuples that share what a change leaves alone.

A value is a tuple of blocks, each a sorted tuple of at most `BLOCK_MAX` pairs, the blocks in
order and none of them empty.  A change copies one block and the tuple of blocks: a few
microseconds for a million pairs.  A snapshot holds it as it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

Pair: TypeAlias = tuple[int, int]
Block: TypeAlias = tuple[Pair, ...]
Order: TypeAlias = tuple[Block, ...]

EMPTY: Order = ()
BLOCK_MAX = 256
BLOCK_FEW = 64
"""A block that shrinks to fewer joins its neighbour, if both fit in one."""


def added(order: Order, pair: Pair) -> Order:
    """With one more pair, which must not be there."""
    if not order:
        return ((pair,),)
    at = max(0, bisect_right(order, pair, key=_first) - 1)
    block = order[at]
    place = bisect_left(block, pair)
    block = (*block[:place], pair, *block[place:])
    if len(block) <= BLOCK_MAX:
        return (*order[:at], block, *order[at + 1 :])
    middle = len(block) if at == len(order) - 1 and place == BLOCK_MAX else len(block) // 2
    cut = min(middle, BLOCK_MAX)  # what only grows at its end gets full blocks
    return (*order[:at], block[:cut], block[cut:], *order[at + 1 :])


def removed(order: Order, pair: Pair) -> Order:
    """Without a pair, which must be there."""
    at = bisect_right(order, pair, key=_first) - 1
    block = order[at]
    place = bisect_left(block, pair)
    assert block[place] == pair, "only what is there is removed"
    block = (*block[:place], *block[place + 1 :])
    if not block:
        return (*order[:at], *order[at + 1 :])
    if len(block) < BLOCK_FEW and at + 1 < len(order) and len(block) + len(order[at + 1]) <= BLOCK_MAX:
        return (*order[:at], (*block, *order[at + 1]), *order[at + 2 :])
    return (*order[:at], block, *order[at + 1 :])


def count_until(order: Order, number: int) -> int:
    """Return how many pairs have a first number of at most ``number``."""
    at = bisect_right(order, number, key=_first_number) - 1
    if at < 0:
        return 0
    return sum(map(len, order[:at])) + bisect_right(order[at], number, key=_number)


def nth(order: Order, place: int) -> Pair:
    """Return the pair at a place, counted from 0."""
    for block in order:
        if place < len(block):
            return block[place]
        place -= len(block)
    raise IndexError(place)


def pairs(order: Order) -> Iterator[Pair]:
    """Return all pairs in their order."""
    return chain.from_iterable(order)


def _first(block: Block) -> Pair:
    return block[0]


def _first_number(block: Block) -> int:
    return block[0][0]


def _number(pair: Pair) -> int:
    return pair[0]
