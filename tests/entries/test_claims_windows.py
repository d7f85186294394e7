"""Entries about a few tasks of a crowded stretch read few pieces, with the same result as if they read all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.claims import WINDOW_PIECES_MIN, Pieces, merged, split, window
from onyxq.core.ids import STRETCH_TASKS


@st.composite
def crowded(draw: st.DrawFn) -> Pieces:
    """Pieces of a stretch, as in the replica: mostly more than are read as a whole."""
    pieces, offset = [], draw(st.integers(0, 5))
    for gap, count, token in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 3)), min_size=6, max_size=60)
    ):
        offset += gap
        pieces.append((offset, count, token, "w", 100))
        offset += count
    return merged(pieces)


@st.composite
def masks(draw: st.DrawFn) -> int:
    """A run of tasks, or two, where most of the generated pieces lie."""
    runs = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=2))
    return sum(((1 << count) - 1) << offset for offset, count in dict(runs).items()) & ((1 << STRETCH_TASKS) - 1)


def changed(pieces: Pieces, bits: int, token: int) -> Pieces:
    """Apply the changes of two kinds of entries: remove pieces, or give them another token."""
    outside, inside = split(pieces, bits, lambda piece: piece[2] == token)
    return merged(
        [*outside, *((offset, count, 3, "w", 100) for offset, count, *_ in inside)] if token == 2 else outside
    )


@settings(max_examples=400, deadline=None)
@given(crowded(), masks(), st.sampled_from([1, 2]))
def test_a_window_is_enough(pieces: Pieces, bits: int, token: int) -> None:
    """The rest of the stretch is neither changed nor merged."""
    start, end = window(pieces, bits)
    assert pieces[:start] + changed(pieces[start:end], bits, token) + pieces[end:] == changed(pieces, bits, token)


def test_a_window_is_small() -> None:
    """Of five hundred pieces, an entry about one task reads at most three."""
    pieces = tuple((2 * place, 1, 7, "w", 100) for place in range(500))
    start, end = window(pieces, 1 << 500)
    assert start < 250 < end and end - start <= 3 < WINDOW_PIECES_MIN


def test_a_window_reaches_the_neighbours_that_a_change_makes_alike() -> None:
    """Of many pieces, the one after the mask and the one before it are merged with what becomes equal to them."""
    pieces = tuple((place, 1, 7 + place % 2, "w", 100) for place in range(40))
    start, end = window(pieces, 1 << 20)
    assert (start, end) == (19, 22)
    renewed = merged([*pieces[start:20], (20, 1, 8, "w", 100), *pieces[21:end]])
    assert renewed == ((19, 3, 8, "w", 100),)
