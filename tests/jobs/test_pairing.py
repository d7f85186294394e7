"""Joins against a model that compares every segment with every other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgpack
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from onyxq.jobs.join_pairs import Batch, Group, Index
from onyxq.jobs.model import Join
from onyxq.jobs.preview import Buckets

Segment = tuple[int, int, int]
"""Side, key, time; its value is its index among all segments."""
segments = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 30))
batches = st.lists(st.lists(segments, max_size=8), max_size=6)
joins = st.builds(
    lambda how, within, lag: Join(
        "j",
        left="a",
        right="b",
        on="k",
        how=how,
        within_ms=within,
        time=None if within is None else "at",
        watermark_ms=0 if within is None else lag,
    ),
    st.sampled_from(["inner", "left"]),
    st.none() | st.integers(1, 9),
    st.integers(0, 9),
)


class World:
    """A join whose state is kept as bytes."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.store = Buckets()
        self.index: bytes | None = None
        self.count = 0

    def batch(self, given_segments: list[Segment], *, ended: bool = False) -> list[Any]:
        """Return the pairs of a batch, as numbers of segments."""
        made, newest = [], [[-1, -1]]
        for side, key, time in given_segments:
            timed = self.join.within_ms is not None
            made.append((side, msgpack.packb(key), time if timed else None, self.count))
            newest[0][side] = max(newest[0][side], time)
            self.count += 1
        latest = [[None if time < 0 else time for time in part] for part in newest]
        group = Group(self.join, Index.unpack(self.index), self.store, 60)
        pairs = list(group.batch(Batch(made, latest, ended)))
        self.index = group.index.pack()
        return [(pair["left"], pair["right"]) for pair in pairs]


def model(join: Join, given_batches: list[list[Segment]]) -> tuple[Counter[Any], int]:
    """Return all expected pairs of segments that are near each other and not late, and the number of late ones."""
    newest: list[int | None] = [None, None]
    accepted: list[tuple[int, Segment]] = []
    number = 0
    for batch in given_batches:
        known = [time for time in newest if time is not None]
        watermark = min(known) - join.watermark_ms if len(known) == 2 and join.within_ms is not None else -(1 << 60)
        for segment in batch:
            if segment[2] >= watermark:
                accepted.append((number, segment))
            number += 1
        for side, _, time in batch:
            newest[side] = time if newest[side] is None else max(newest[side], time)  # type: ignore[type-var]
    found: Counter[Any] = Counter()
    for left, one in accepted:
        partners = [
            right
            for right, other in accepted
            if (one[0], other[0]) == (0, 1)
            and one[1] == other[1]
            and (join.within_ms is None or abs(one[2] - other[2]) <= join.within_ms)
        ]
        found.update((left, right) for right in partners)
        if one[0] == 0 and not partners and join.how == "left":
            found[left, None] += 1
    return found, number - len(accepted)


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(joins, batches)
def test_a_join_finds_the_pairs_that_the_model_finds(join: Join, given_batches: list[list[Segment]]) -> None:
    """Each pair is found once, however segments are spread over batches, and no state is left at the end."""
    world = World(join)
    found = Counter(pair for batch in given_batches for pair in world.batch(batch))
    found.update(world.batch([], ended=True))
    expected, late = model(join, given_batches)
    event("a left one alone" if any(right is None for _, right in expected) else "no left one alone")
    assert found == expected
    assert Index.unpack(world.index).late == late
    assert not world.store


def test_what_finds_no_partner_any_more_is_let_go() -> None:
    """State does not grow with the stream, and a left segment without partner is output as soon as that is sure."""
    world = World(Join("j", left="a", right="b", on="k", how="left", within_ms=5, time="at", watermark_ms=2))
    assert world.batch([(0, 1, 10), (1, 2, 10)]) == []
    assert world.batch([(0, 3, 17), (1, 3, 17)]) == [(2, 3)]
    assert world.batch([(0, 9, 18), (1, 9, 18)]) == [(4, 5), (0, None)]
    for time in range(20, 2_000):
        world.batch([(0, time, time), (1, time, time)])
    assert sum(map(len, world.store.values())) < 500
