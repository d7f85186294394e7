"""Windows compared with a model that keeps every segment and computes every output from scratch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgpack
import pytest
from attrs import evolve, field, mutable
from hypothesis import event, given, settings
from hypothesis import strategies as st

from onyxq.core.ids import make_id
from onyxq.jobs.model import Aggregation, Job, Reduce, Ref, Trigger, Window
from onyxq.jobs.preview import Buckets
from onyxq.jobs.window_groups import Batch, Fired, Group, Index
from onyxq.jobs.windows import NEVER, Parts, Windowing, extents_at, windowings
from onyxq.spark.lineage import child

Segment = dict[str, Any]


def resolve(ref: Ref, place: str) -> Callable[..., Any]:
    """Return the function itself."""
    assert callable(ref), place
    return ref


def compiled(window: Window, *triggers: Trigger) -> tuple[Windowing, ...]:
    """Return a job's only window, compiled."""
    return windowings(Job(workflow=[], catalog=[Reduce("t")], windows=[window], triggers=list(triggers)), "t", resolve)


@mutable
class Kept:
    """A key group whose state is kept between batches as bytes."""

    windows: tuple[Windowing, ...]
    bucket_bytes_max: int = 200
    store: Buckets = field(factory=Buckets)
    index: bytes | None = None

    def batch(self, parts: list[list[Segment]], now_ms: int, *, ended: bool = False) -> list[tuple[Any, ...]]:
        """Return the output for segments that came in several parts of a batch."""
        group, batch = self.group(), self.folded(parts, now_ms, ended)
        said = [seen(fired) for fired in group.batch(batch)]
        self.index = group.index.pack()
        return said

    def group(self) -> Group:
        """Return the group at the start of a batch."""
        index = Index.unpack(self.index, len(self.windows))
        return Group(self.windows, index, self.store, self.bucket_bytes_max)

    def folded(self, parts: list[list[Segment]], now_ms: int, ended: bool) -> Batch:
        """Return the batch of the parts, each folded separately and encoded."""
        rows, newest = [], []
        for part in parts:
            folds = [Parts(windowing) for windowing in self.windows]
            for segment in part:
                for fold in folds:
                    fold.add(segment, now_ms)
            for place, fold in enumerate(folds):
                rows += [(place, key, tuple(msgpack.unpackb(msgpack.packb(one)))) for key, one in fold.take()]
            newest.append([fold.newest for fold in folds])
        return Batch(now_ms, rows, newest, ended)  # type: ignore[arg-type]


def seen(fired: Fired) -> tuple[Any, ...]:
    """Return an emission as a plain value, and its number."""
    said = fired.emission.segment(msgpack.unpackb(fired.key))
    value = msgpack.unpackb(msgpack.packb(said["value"]))
    return said["key"], said["start_ms"], said["end_ms"], shown(fired.emission.trigger), value, fired.emission.number


def shown(trigger: Trigger) -> tuple[Any, ...]:
    """Return what tells a window's triggers apart."""
    return trigger.on, trigger.refinement, trigger.period_ms, trigger.count


# --- the model ------------------------------------------------------------------


@mutable
class Told:
    """A segment, and the triggers that have emitted it."""

    time: int
    value: Any
    by: set[int] = field(factory=set)


@mutable(eq=False)
class Piece:
    """An extent with all its segments."""

    start: int
    end: int
    segments: list[Told] = field(factory=list)

    def unsent(self, place: int) -> int:
        """Return how many segments a trigger has not emitted."""
        return sum(place not in one.by for one in self.segments)


@mutable
class Model:
    """All segments of each key, without optimisation."""

    window: Window
    triggers: list[Trigger]
    value: Callable[[list[Any]], Any]
    pieces: dict[Any, list[Piece]] = field(factory=dict)
    newest: int | None = None
    seen: int | None = None
    late: int = 0

    def clock(self) -> int:
        """Return the watermark, or the time of the batch."""
        shown = self.seen if self.window.time is None else self.newest
        return -NEVER if shown is None else shown - self.window.watermark_ms

    def batch(self, segments: list[Segment], now: int, ended: bool) -> list[tuple[Any, ...]]:
        """Return the expected output of a batch."""
        before, earlier = self.clock(), self.seen
        said: list[tuple[Any, ...]] = []
        for segment in segments:
            taken = self.add(segment["key"], segment["at"] if self.window.time else now, segment["n"])
            said += self.fire(partial(at_once, before, taken))
        now = now if earlier is None else max(now, earlier)
        for pieces in self.pieces.values():
            self.late += sum(len(piece.segments) for piece in pieces if piece.end <= before)
            pieces[:] = [piece for piece in pieces if piece.end > before]
        if segments:
            times = [segment["at"] for segment in segments]
            self.newest = max(times) if self.newest is None else max(self.newest, *times)
        self.seen = now
        said += self.fire(lambda piece, place, trigger: trigger.on == "batch")
        said += self.fire(
            lambda piece, place, trigger: (
                trigger.on == "timer"
                and earlier is not None
                and now // trigger.period_ms != earlier // trigger.period_ms
            )
        )
        over = NEVER if ended else self.clock()
        said += self.fire(lambda piece, place, trigger: piece.end <= over)
        for pieces in self.pieces.values():
            pieces[:] = [piece for piece in pieces if piece.end > over]
        return said

    def add(self, key: Any, time: int, value: Any) -> list[Piece]:
        """Add a segment to every extent that contains its time, and return these extents."""
        pieces, taken = self.pieces.setdefault(key, []), []
        for start, end in naive_extents(self.window, time):
            if self.window.kind == "session":
                touched = [piece for piece in pieces if start < piece.end and piece.start < end]
            else:
                touched = [piece for piece in pieces if piece.start == start]
            piece = Piece(min([start, *(one.start for one in touched)]), max([end, *(one.end for one in touched)]))
            piece.segments = [told for one in touched for told in one.segments] + [Told(time, value)]
            pieces[:] = [one for one in pieces if one not in touched] + [piece]
            taken.append(piece)
        return taken

    def fire(self, chosen: Callable[[Piece, int, Trigger], bool]) -> Iterator[tuple[Any, ...]]:
        """Return what the given triggers have not output yet."""
        for key, pieces in self.pieces.items():
            for piece in pieces:
                for place, trigger in enumerate(self.triggers):
                    if piece.unsent(place) and chosen(piece, place, trigger):
                        yield self.said(key, piece, place, trigger)

    def said(self, key: Any, piece: Piece, place: int, trigger: Trigger) -> tuple[Any, ...]:
        """One emission."""
        discards = trigger.refinement == "discarding"
        told = [one for one in piece.segments if not (discards and place in one.by)]
        for one in told:
            one.by.add(place)
        times = (None, None) if piece.end == NEVER else (piece.start, piece.end)
        return key, *times, shown(trigger), self.value([one.value for one in told])


def at_once(clock: int, taken: list[Piece], piece: Piece, place: int, trigger: Trigger) -> bool:
    """Return whether a trigger of an extent fires after the last segment, which some extents have taken."""
    if piece.end <= clock or piece not in taken:
        return False
    if trigger.count is not None:
        return piece.unsent(place) >= trigger.count
    return trigger.on == "punctuation" and punctuates({"n": piece.segments[-1].value})


def punctuates(segment: Segment) -> bool:
    """A predicate of a trigger."""
    return bool(segment["n"] % 4 == 0)


def naive_extents(window: Window, time: int) -> list[tuple[int, int]]:
    """Return the extents of a time, found by trying all starts."""
    if window.kind == "global":
        return [(0, NEVER)]
    if window.kind == "session":
        return [(time, time + window.gap_ms)]
    size, slide = window.range_ms, window.slide_ms or window.range_ms
    return [
        (start, start + size)
        for start in range(time - size - slide, time + 1)
        if start % slide == 0 and start <= time < start + size
    ]


# --- for random jobs --------------------------------------------------------------

AGGREGATIONS: dict[str, tuple[Any, Callable[[list[Any]], Any]]] = {
    "count": ("count", len),
    "sum": ("sum", sum),
    "min": ("min", min),
    "max": ("max", max),
    "average": ("average", lambda values: sum(values) / len(values)),
    "conj": ("conj", sorted),
    "own": (
        Aggregation(
            init=lambda: {"n": 0},
            fold=lambda state, segment: {"n": state["n"] + 2 * segment["n"]},
            merge=lambda one, other: {"n": one["n"] + other["n"]},
            result=lambda state: ["twice", state["n"]],
        ),
        lambda values: ["twice", 2 * sum(values)],
    ),
    "whole": (
        Aggregation(init=list, fold=lambda state, segment: [*state, segment["n"]], result=len),
        len,
    ),
}


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Window, list[Trigger], Callable[[list[Any]], Any]]:
    """A window with its triggers, and its expected value."""
    kind = draw(st.sampled_from(["fixed", "sliding", "session", "global"]))
    name = draw(st.sampled_from([name for name in AGGREGATIONS if not (name == "whole" and kind == "session")]))
    aggregation, value = AGGREGATIONS[name]
    slide = draw(st.integers(1, 7))
    timed = draw(st.booleans())
    window = Window(
        "w",
        "t",
        kind,
        range_ms={"fixed": slide, "sliding": slide * draw(st.integers(1, 3))}.get(kind),
        slide_ms=slide if kind == "sliding" else None,
        gap_ms=slide if kind == "session" else None,
        key="key",
        time="at" if timed else None,
        watermark_ms=draw(st.integers(0, 6)) if timed else 0,
        aggregation=aggregation,
        field="n" if isinstance(aggregation, str) else None,
    )
    said = st.tuples(st.sampled_from(KINDS), st.sampled_from(["accumulating", "discarding"]))
    drawn = draw(st.lists(said, min_size=1, max_size=3, unique=True))
    return window, [Trigger("w", **dict(kind), refinement=mode) for kind, mode in drawn], value


KINDS = [
    tuple(kind.items())
    for kind in (
        {"on": "batch"},
        {"on": "watermark"},
        {"on": "timer", "period_ms": 5},
        {"on": "timer", "period_ms": 11},
        {"on": "segments", "count": 1},
        {"on": "segments", "count": 3},
        {"on": "punctuation", "predicate": punctuates},
    )
]
"""Arguments of triggers, which Hypothesis can compare."""


segments = st.builds(
    lambda key, at, n: {"key": key, "at": at, "n": n},
    st.sampled_from(["a", "b", 3, None]),
    st.integers(-5, 40),
    st.integers(-9, 9),
)
batches = st.lists(
    st.tuples(st.lists(st.lists(segments, max_size=5), min_size=1, max_size=3), st.integers(-4, 9)), max_size=7
)
"""Segments in parts, and the time from one batch to the next; a clock may go back."""


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(worlds(), batches)
def test_windows_say_what_the_model_says(world: tuple[Any, ...], given_batches: list[Any]) -> None:
    """Windows, triggers, parts of segments and clocks of batches are random, and no emission has a name twice."""
    window, triggers, value = world
    kept, model = Kept(compiled(window, *triggers)), Model(window, triggers, value)
    now, names = 0, Counter[Any]()
    for place, (parts, later) in enumerate([*given_batches, ([[]], 1)]):
        now += later
        ended = place == len(given_batches)
        said = kept.batch(parts, now, ended=ended)
        names.update((one[:4], one[5]) for one in said)
        expected = model.batch([segment for part in parts for segment in part], now, ended)
        event(f"{window.kind}: {'something' if expected else 'nothing'} said")
        assert counted([one[:5] for one in said]) == counted(expected)
        assert at_segments(said) == at_segments(expected), "what segments fire comes in their order"
    assert not kept.store, "all is over, nothing is kept"
    assert Index.unpack(kept.index, 1).late == model.late
    event("some were late" if model.late else "none was late")
    assert all(times == 1 for times in names.values())


def at_segments(said: list[tuple[Any, ...]]) -> dict[str, list[str]]:
    """Return what triggers on segments emitted for each key and extent, in order, up to the end of the window."""
    found: dict[str, list[str]] = {}
    for one in said:
        if one[3][0] in ("segments", "punctuation"):
            found.setdefault(repr(one[:3]), []).append(repr(sorted(one[4]) if plain(one[4]) else one[4]))
    return found


def plain(value: Any) -> bool:
    """Return whether a value is a list of the values of segments."""
    return isinstance(value, list) and "twice" not in value


def counted(said: list[tuple[Any, ...]]) -> Counter[str]:
    """Return emissions without order, their lists too."""
    return Counter(repr((*one[:4], sorted(one[4]) if plain(one[4]) else one[4])) for one in said)


@settings(max_examples=200, deadline=None)
@given(st.integers(-50, 50), st.integers(1, 9), st.integers(1, 9))
def test_extents_are_those_whose_time_it_is(time: int, slide: int, times: int) -> None:
    """Arithmetic finds the same extents as trying all starts."""
    window = Window("w", "t", "sliding", range_ms=slide * times, slide_ms=slide)
    assert sorted(extents_at(window, time)) == naive_extents(window, time)
    uneven = Window("w", "t", "sliding", range_ms=slide * times + 1, slide_ms=slide)
    assert sorted(extents_at(uneven, time)) == naive_extents(uneven, time)


def test_a_list_is_in_the_order_of_parts_and_arrival() -> None:
    """Parts are merged in the order in which they are given."""
    kept = Kept(compiled(Window("w", "t", field="n"), Trigger("w", "batch")))
    parts = [[{"n": 3}, {"n": 1}], [{"n": 2}]]
    assert kept.batch(parts, 1)[0][4] == [3, 1, 2]
    assert kept.batch([[{"n": 0}]], 2)[0][4] == [3, 1, 2, 0]


@pytest.mark.parametrize("trigger", [{"on": "segments", "count": 3}, {"on": "punctuation", "predicate": punctuates}])
@pytest.mark.parametrize("kind", [{"kind": "session", "gap_ms": 4}, {"kind": "fixed", "range_ms": 10}])
def test_segments_fire_in_the_order_of_their_lineage(trigger: dict[str, Any], kind: dict[str, Any]) -> None:
    """However Spark deals out a repeat of a batch, triggers fire at the same segments, and the same state is left."""
    window = Window("w", "t", key="key", time="at", field="n", aggregation="sum", **kind)
    windows = compiled(window, Trigger("w", refinement="discarding", **trigger))
    rng = random.Random(5)
    fold = Parts(windows[0])
    for place in range(60):
        fold.add({"key": rng.choice("ab"), "at": rng.randrange(30), "n": rng.randrange(9)}, 0, b"%03d" % place)
    rows = [(0, key, one) for key, one in fold.take()]
    found = []
    for _ in range(5):
        kept = Kept(windows)
        group = kept.group()
        said = [seen(fired) for fired in group.batch(Batch(1, rows, [[fold.newest]]))]
        found.append((said, dict(kept.store), group.index.pack()))
        rng.shuffle(rows)
    assert found[0][0] and all(one == found[0] for one in found)


def test_segments_made_of_one_segment_keep_their_order() -> None:
    """A function returns a list, and triggers fire at its segments in the order of the list."""
    windows = compiled(Window("w", "t", field="n"), Trigger("w", "segments", count=1, refinement="discarding"))
    fold = Parts(windows[0])
    for source in range(3):
        for ordinal in range(8):
            fold.add({"n": [source, ordinal]}, 0, child(make_id(1, 0, 7, source), 0, ordinal))
    rows = [(0, key, one) for key, one in fold.take()]
    said = [seen(fired)[4] for fired in Kept(windows).group().batch(Batch(1, rows, [[fold.newest]]))]
    assert said == [[[source, ordinal]] for source in range(3) for ordinal in range(8)]


def test_a_trigger_on_segments_fires_at_each_multiple_of_its_count() -> None:
    """A batch with many segments fires several times, and the rest counts towards the first firing of the next."""
    window = Window("w", "t", key="key", aggregation="sum", field="n")
    kept = Kept(compiled(window, Trigger("w", "segments", count=3, refinement="discarding")))
    ones = [{"key": "a", "n": n} for n in range(8)]
    assert [one[4] for one in kept.batch([ones[:4], ones[4:]], 1)] == [0 + 1 + 2, 3 + 4 + 5]
    assert kept.batch([[{"key": "b", "n": 0}]], 2) == []
    assert [one[4] for one in kept.batch([[{"key": "a", "n": 9}]], 3)] == [6 + 7 + 9]
    assert [(one[0], one[4]) for one in kept.batch([], 4, ended=True)] == [("b", 0)]


def test_a_punctuation_emits_everything_up_to_its_segment() -> None:
    """Segments of other keys and extents are not emitted, and a late punctuation emits nothing."""
    window = Window("w", "t", "fixed", range_ms=10, key="key", time="at", field="n")
    kept = Kept(compiled(window, Trigger("w", "punctuation", predicate=punctuates)))
    marks = [{"key": key, "at": at, "n": n} for key, at, n in (("a", 1, 1), ("b", 2, 3), ("a", 12, 5), ("a", 3, 8))]
    assert [one[:5:2] for one in kept.batch([[*marks, {"key": "a", "at": 4, "n": 9}]], 1)] == [
        ("a", 10, [1, 8]),
        ("a", 10, [1, 8, 9]),
        ("b", 10, [3]),
    ]
    assert kept.batch([[{"key": "a", "at": 5, "n": 4}]], 2) == []


def test_a_punctuation_of_a_session_emits_all_that_it_joins() -> None:
    """Earlier segments of the session are part of it, although they were apart until then."""
    window = Window("w", "t", "session", gap_ms=10, key="key", time="at", field="n")
    kept = Kept(compiled(window, Trigger("w", "punctuation", predicate=punctuates)))
    times = [{"key": "a", "at": at, "n": n} for at, n in ((0, 4), (-5, 1), (8, 8))]
    said = [(one[1], one[2], sorted(one[4])) for one in kept.batch([times], 1)]
    assert said == [(0, 10, [4]), (-5, 18, [1, 4, 8])]


@pytest.mark.parametrize("before", ["watermark", "batch", "segments"])
def test_a_trigger_of_another_kind_continues_the_count(before: str) -> None:
    """A resumed job counts from the last emission, whatever trigger or count the earlier job had at this place."""
    window, count = Window("w", "t", aggregation="count"), {"count": 5} if before == "segments" else {}
    old = Kept(compiled(window, Trigger("w", before, **count)))  # type: ignore[arg-type]
    old.batch([[{}, {}]], 1)
    new = Kept(compiled(window, Trigger("w", "segments", count=3)), store=old.store, index=old.index)
    said = [one[4] for _ in range(3) for one in new.batch([[{}]], 2)]
    assert said == ([5] if before == "batch" else [3])


@pytest.mark.parametrize("kind", [{"kind": "session", "gap_ms": 5}, {"kind": "fixed", "range_ms": 10}])
@pytest.mark.parametrize("late", [[], [{"key": "a", "at": 4}]])
def test_a_shorter_watermark_completes_the_extents_that_it_ends(kind: dict[str, Any], late: list[Segment]) -> None:
    """A resumed job emits all that the earlier one had counted, also for a key that gets late segments first."""
    window = Window("w", "t", key="key", time="at", aggregation="count", watermark_ms=100, **kind)
    old = Kept(compiled(window, Trigger("w")))
    assert not old.batch([[{"key": "a", "at": 2}, {"key": "a", "at": 3}, {"key": "b", "at": 50}]], 1)
    new = Kept(compiled(evolve(window, watermark_ms=10), Trigger("w")), store=old.store, index=old.index)
    said = new.batch([[*late, {"key": "b", "at": 51}]], 2)
    assert [one[4] for one in said] == [2]
    assert Index.unpack(new.index, 1).late == len(late)


def test_a_group_wakes_for_timers_and_for_the_clock() -> None:
    """It reports when work may be due without new segments, and does it then."""
    timer = Kept(compiled(Window("w", "t", aggregation="count"), Trigger("w", "timer", period_ms=100)))
    assert timer.group().wake_ms() is None
    timer.batch([[{}]], 250)
    group = timer.group()
    assert group.wake_ms() == 300
    assert [fired.emission.value for fired in group.batch(Batch(310))] == [1]
    assert group.wake_ms() is None
    clock = Kept(compiled(Window("w", "t", "fixed", range_ms=100, aggregation="count"), Trigger("w")))
    clock.batch([[{}]], 250)
    group = clock.group()
    assert group.wake_ms() == 300
    assert [fired.emission.start for fired in group.batch(Batch(300))] == [200]
    assert group.wake_ms() is None


def test_a_large_state_is_read_in_pieces() -> None:
    """A batch with few keys reads few of many buckets, and finds its state."""
    kept = Kept(
        compiled(Window("w", "t", key="key", aggregation="count"), Trigger("w", "batch")), bucket_bytes_max=1_000
    )
    kept.batch([[{"key": key} for key in range(2_000)]], 1)
    assert len(kept.store) > 30 and all(len(data) <= 1_000 for data in kept.store.values())
    before = dict(kept.store)
    said = kept.batch([[{"key": 7}, {"key": 9}]], 2)
    assert sorted((one[0], one[4]) for one in said) == [(7, 2), (9, 2)]
    assert sum(before[number] != data for number, data in kept.store.items()) <= 2


def test_the_same_batch_twice_says_the_same() -> None:
    """A repeated batch gives the same output from the same state, in the same order."""
    rng = random.Random(4)
    kept = Kept(
        compiled(
            Window("w", "t", "session", gap_ms=5, key="key", time="at"),
            Trigger("w", "batch", refinement="discarding"),
            Trigger("w"),
        )
    )
    for now in range(1, 20):
        parts = [[{"key": rng.randrange(50), "at": now * 3 + rng.randrange(9), "n": rng.random()} for _ in range(40)]]
        again = Kept(kept.windows, kept.bucket_bytes_max, Buckets(kept.store), kept.index)
        assert kept.batch(parts, now) == again.batch(parts, now)
        assert (kept.index, kept.store) == (again.index, again.store)


@pytest.mark.parametrize("time", ["12", None, True, float("nan"), 1 << 60])
def test_what_is_no_time_is_refused(time: Any) -> None:
    """A segment whose time is not a number of milliseconds does not move the watermark."""
    parts = Parts(compiled(Window("w", "t", time="at"), Trigger("w"))[0])
    with pytest.raises(ValueError, match="a time must be a number of milliseconds"):
        parts.add({"at": time}, 0)
    assert parts.newest is None
