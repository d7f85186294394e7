"""Sorted pairs of numbers, as nested tuples that share everything that a change does not touch.

A value is a tuple of blocks in order.  Each block is a sorted tuple of 1 to `BLOCK_MAX` pairs.
A change copies one block and the tuple of blocks, in a few microseconds for a million pairs.
A snapshot holds the value as it is.
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
"""A block that shrinks below this size joins its neighbour, if both fit in one block."""


def added(order: Order, pair: Pair) -> Order:
    """Return the order with one more pair, which it must not contain yet."""
    if not order:
        return ((pair,),)
    at = max(0, bisect_right(order, pair, key=_first) - 1)
    block = order[at]
    place = bisect_left(block, pair)
    block = (*block[:place], pair, *block[place:])
    if len(block) <= BLOCK_MAX:
        return (*order[:at], block, *order[at + 1 :])
    middle = len(block) if at == len(order) - 1 and place == BLOCK_MAX else len(block) // 2
    cut = min(middle, BLOCK_MAX)  # an order that only grows at its end gets full blocks
    return (*order[:at], block[:cut], block[cut:], *order[at + 1 :])


def removed(order: Order, pair: Pair) -> Order:
    """Return the order without a pair, which it must contain."""
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
    """Return the pair at a place, counted from 0; raises `IndexError` beyond the end."""
    for block in order:
        if place < len(block):
            return block[place]
        place -= len(block)
    raise IndexError(place)


def pairs(order: Order) -> Iterator[Pair]:
    """Return an iterator over all pairs in order."""
    return chain.from_iterable(order)


def _first(block: Block) -> Pair:
    return block[0]


def _first_number(block: Block) -> int:
    return block[0][0]


def _number(pair: Pair) -> int:
    return pair[0]
