"""Key groups on Spark: how segments reach the group of their key, and the state of a group.

Windows and joins are cut in the same way. Where the segments are, each part of a batch is *dealt* out into rows
``(grp, place, kind, name, payload)``: each to the group of its key. A note about the times in the part goes to all
groups, so that all of them know the watermark. Then each group gets all its rows of the batch at once, in the order
of parts and places, with its state: an index, and buckets by number (`onyxq.jobs.key_state`).

The number of groups of a job never changes. Groups are what is spread over slots. Event time is not Spark's: our
own watermark moves with the batch that brought the time, is the same for all groups, and may differ between
windows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, count
from typing import Any, Protocol

import msgpack
import pandas  # type: ignore[import-untyped]
import pyarrow
from attrs import field, frozen, mutable
from pyspark.sql import functions as of
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from onyxq.core.ids import make_id
from onyxq.jobs.encoding import decode
from onyxq.jobs.key_state import hash64
from onyxq.jobs.model import Job
from onyxq.jobs.values import Unfit, pack, unpack
from onyxq.spark.plan import rows
from onyxq.spark.plan.fused import Feed
from onyxq.spark.plan.lifecycles import Lifecycles
from onyxq.spark.progress import LATE, WATERMARK

_NOTE, _ENDED, _STATE, _LETTER = -1, -2, -3, -4
"""Kinds of rows that are not the cut's own: two that go to all groups, state of another job, and dead letters."""
_NOW, _PART = "_onyxq_now_ms", "_onyxq_dealt_part"
"""Columns of what is dealt: the time of the batch, and the number of the part among those of its feed."""
_LATE = "<late>"
_DEALT = pyarrow.schema(
    [
        ("grp", pyarrow.int32()),
        ("place", pyarrow.int64()),
        ("kind", pyarrow.int32()),
        ("name", pyarrow.binary()),
        ("payload", pyarrow.binary()),
        ("seen_ms", pyarrow.int64()),
    ]
)
_DEALT_SQL = "grp int, place bigint, kind int, name binary, payload binary, seen_ms bigint"
FOLDED_MAX = 50_000
"""Maximum number of pieces that are kept before they are sent."""

Dealt = tuple[int, bytes, Sequence[Any]]
"""``(kind, name, values)``: sent to the group of the name, where it arrives as a list."""
Inherited = tuple[str, bytes | None, Any]
"""``(name, key, value)``: a cell of a window or join. Without a key it is for all groups: what they know of times.

With an empty name it is the number of late segments, for one group.
"""
Made = tuple[str, Any]
"""``(out, value)``: a segment, and the only task that it goes to after the cut, if it does not go to all."""


class State(Protocol):
    """The state of a group: an index, and buckets by number."""

    index: bytes | None

    def load(self, number: int) -> bytes | None:
        """Return the bytes under a number."""

    def save(self, number: int, data: bytes | None) -> None:
        """Store bytes under a number, or (None) remove them."""


@frozen
class Given:
    """The input of one group in one batch."""

    now_ms: int
    """When the batch was planned; the same in every repeat."""
    dealt: Sequence[Dealt] = ()
    """In the order of parts and places."""
    notes: Sequence[Any] = ()
    """One for each part of the batch that had segments."""
    ended: bool = False
    """Whether all inputs have ended."""
    state: Sequence[Inherited] = ()
    """State of another job: the only content of the first batch of a job that resumes it."""
    letters: Sequence[dict[str, Any]] = ()
    """Dead letters, which the group passes on."""


class Dealer(Protocol):
    """Deals out one part of a batch."""

    def add(self, lineage: bytes, side: int, value: Any, now_ms: int, to: str = "") -> dict[str, Any] | None:
        """Add a segment of the batch that was planned at that time, or return the dead letter that it becomes.

        ``to``: the task, or ``task/window`` for a segment of one window only.
        """

    def add_columns(self, batch: Any, side: int, now_ms: int) -> None:
        """Add the rows of an Arrow batch as segments."""

    def __len__(self) -> int:
        """Return how much `take` would yield."""

    def take(self) -> Iterator[Dealt]:
        """Yield what is to be sent, and drop it here."""

    def note(self) -> Any:
        """Return what all groups must know about the part."""

    def watermark_ms(self) -> int | None:
        """Return the watermark of the part, if it has one; for display only."""


@frozen
class Cut:
    """The work at a cut of one task of a job.

    It is sent to the workers, so it holds plain values only.
    """

    body: bytes = field(repr=False)
    """The job's bytes."""
    task: str

    def dealer(self) -> Dealer:
        """Return a dealer of one part of a batch."""
        raise NotImplementedError

    def gather(self, given: Given, state: State) -> Iterator[Made]:
        """Yield the segments that a group makes of its rows.

        The state must be stored once this is exhausted.
        """
        raise NotImplementedError

    def restore(self, inherited: Sequence[Inherited], state: State) -> None:
        """Store the state that another job left."""
        raise NotImplementedError

    def wake_ms(self, state: State) -> int | None:
        """Return when a group must run without new segments, in ms; None: never."""
        return None

    def letter(self, error: Exception, segment: Any, way: str) -> dict[str, Any]:
        """Return the dead letter for an exception of one of the cut's functions; raises `TaskFailed` if it has none."""
        return _lifecycles(self.body, self.task).letter(self.task, error, segment, way)

    def failed(self, error: Exception, segment: Any) -> Exception:
        """Return what to raise for an exception of one of the cut's functions."""
        return _lifecycles(self.body, self.task).failed(self.task, error, segment)


@lru_cache(maxsize=64)
def _lifecycles(body: bytes, task: str) -> Lifecycles:
    return Lifecycles(decode(body), {"task": task})


def cut(feeds: Sequence[Feed], work: Cut, job: Job, *, most: int | None, timed: bool) -> Any:
    """Return the segments that a cut makes of its feeds; with ``timed`` groups also run without input.

    ``most`` limits the parts of a batch, and thus how many of the stage before the groups run at once.
    """
    assert job.key_groups is not None, "a job that is compiled has a number of groups"
    parts = [_dealt(feed, _Deal(work, job.key_groups, place, feed)) for place, feed in enumerate(feeds)]
    dealt = reduce(lambda one, other: one.unionAll(other), parts)
    dealt = dealt if most is None else dealt.coalesce(most)
    dealt = dealt.observe(f"onyxq/{work.task}", of.max("seen_ms").alias(WATERMARK)).drop("seen_ms")
    made = dealt.groupBy("grp").transformWithStateInPandas(
        statefulProcessor=_Gather(work, job.id, timed=timed),
        outputStructType=rows.SCHEMA,
        outputMode="append",
        timeMode="processingTime" if timed else "none",
    )
    told = of.col("out").startswith(_LATE)
    count = of.substring("out", len(_LATE) + 1, 20).cast("bigint")
    return made.observe(f"onyxq-late/{work.task}", of.sum(of.when(told, count)).alias(LATE)).where(~told)


def _dealt(feed: Feed, deal: _Deal) -> Any:
    now = of.unix_millis(of.current_timestamp()).alias(_NOW)
    return feed.frame.select("*", now, of.spark_partition_id().alias(_PART)).mapInArrow(deal, _DEALT_SQL)


def late(count: int) -> Made:
    """Return a row with the number of segments that were too late for a group so far; for display only."""
    return f"{_LATE}{count}", None


# --- where the segments are ---------------------------------------------------------


class _Deal:
    """The function that `mapInArrow` calls for each part of a batch of one feed."""

    def __init__(self, work: Cut, groups: int, place: int, feed: Feed) -> None:
        self._work = work
        self._groups = groups
        self._place = place
        self._side = feed.side
        self._run = feed.run
        self._names = list(feed.names)
        self.__name__ = f"{work.task}: {'columns' if feed.run is None else 'segments'}"
        """Name of the step in Spark's plans."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        part = _Part(batches)
        dealer, sent, seen = self._work.dealer(), _Sent(self._groups, self._place, part), False
        for given in part if self._run is None else self._run(part):
            if self._run is None:
                seen = True
                self._add_columns(dealer, given, part.now_ms)
            elif given[0] == rows.END:
                sent.to_all(_ENDED, part.now_ms)
            elif given[0] == rows.STATE:
                sent.state(unpack(given[2]))
            else:
                out, lineage, payload = given
                seen, value = True, unpack(payload)
                letter = value if out == rows.LETTER else dealer.add(lineage, self._side, value, part.now_ms, out)
                if letter is not None:
                    sent.letter(lineage, letter)
            if len(dealer) + len(sent) >= FOLDED_MAX:
                yield self._sent(sent, dealer)
        if seen:
            sent.to_all(_NOTE, part.now_ms, dealer.note(), seen_ms=dealer.watermark_ms())
        yield self._sent(sent, dealer)

    def _add_columns(self, dealer: Dealer, batch: Any, now_ms: int) -> None:
        try:
            dealer.add_columns(batch.rename_columns(self._names), self._side, now_ms)
        except Unfit as error:
            raise self._work.failed(error, None) from error

    def _sent(self, sent: _Sent, dealer: Dealer) -> Any:
        try:
            return sent.batch(dealer.take())
        except Unfit as error:
            raise self._work.failed(error, None) from error


class _Part:
    """The Arrow batches of one part, without the two columns that `_dealt` has added, whose values it knows."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self.now_ms = 0
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            own = batch.num_columns - 2
            if batch.num_rows:
                self.now_ms, self.number = (batch.column(place)[0].as_py() for place in (own, own + 1))
                yield batch.select(list(range(own)))


class _Sent:
    """Rows of one part of a batch, numbered in the order of feeds, parts and rows."""

    def __init__(self, groups: int, feed: int, part: _Part) -> None:
        self._groups = labels(groups)
        self._feed = feed
        self._part = part
        self._count = 0
        self._rows: list[tuple[int, int, int, bytes, bytes, int | None]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def to_all(self, kind: int, *said: Any, seen_ms: int | None = None) -> None:
        """Add a row for each group."""
        payload = msgpack.packb(said)
        for group in self._groups:
            self._rows.append((group, self._next(), kind, b"", payload, seen_ms))

    def state(self, one: Inherited) -> None:
        """Add state of another job for the group of its key, or without a key for each group."""
        key = one[1]
        for group in self._groups if key is None else (self._group(key),):
            self._rows.append((group, self._next(), _STATE, key or b"", pack([*one]), None))

    def letter(self, lineage: bytes, letter: dict[str, Any]) -> None:
        """Add a dead letter of the segment with that lineage, for a group that passes it on."""
        self._rows.append((self._group(lineage), self._next(), _LETTER, b"", pack([letter]), None))

    def _group(self, name: bytes) -> int:
        return self._groups[zlib.crc32(name) % len(self._groups)]

    def batch(self, dealt: Iterable[Dealt]) -> Any:
        """Return all rows so far, and the given ones, each for the group of its name."""
        for kind, name, value in dealt:
            self._rows.append((self._group(name), self._next(), kind, name, pack([*value]), None))
        found, self._rows = self._rows, []
        columns = zip(*found, strict=True) if found else [()] * len(_DEALT)
        arrays = [pyarrow.array(values, kind.type) for values, kind in zip(columns, _DEALT, strict=True)]
        return pyarrow.RecordBatch.from_arrays(arrays, schema=_DEALT)

    def _next(self) -> int:
        self._count += 1
        return (self._feed << 20 | self._part.number) << 32 | self._count


@lru_cache(maxsize=64)
def labels(groups: int) -> tuple[int, ...]:
    """Return labels of groups that Spark's hash puts into a partition each."""
    found: dict[int, int] = {}
    for label in count():
        found.setdefault(_spark_hash(label) % groups, label)
        if len(found) == groups:
            return tuple(found[place] for place in range(groups))
    raise AssertionError("labels do not end")


def _spark_hash(label: int) -> int:
    """Return Spark's hash of an integer: Murmur3 of its four bytes with the seed 42, as a signed number."""
    mask = 0xFFFFFFFF
    mixed = label * 0xCC9E2D51 & mask
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & mask
    mixed ^= 42
    mixed = ((mixed << 13 | mixed >> 19) * 5 + 0xE6546B64 & mask) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & mask
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & mask
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


# --- where the groups are -----------------------------------------------------------


class _Gather(StatefulProcessor):
    """The processor that Spark calls for each group that has rows, or whose timer fired."""

    def __init__(self, work: Cut, job: str, *, timed: bool) -> None:
        self._work = work
        self._job = job
        self._timed = timed
        """Whether groups also run without input: without that Spark refuses timers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._index = handle.getValueState("index", "turn bigint, wake_ms bigint, data binary")
        self._buckets = handle.getMapState("buckets", "number bigint", "data binary")

    def handleInputRows(self, key: Any, rows: Iterator[pandas.DataFrame], timerValues: Any) -> Iterator[Any]:
        yield from self._gathered(key[0], _given(rows))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from self._gathered(key[0], Given(timerValues.getCurrentProcessingTimeInMs()))

    def _gathered(self, group: int, given: Given) -> Iterator[Any]:
        turn, wake_ms, index = self._index.get() or (0, 0, None)
        state = _Kept(self._buckets, index)
        made = _Made(given.now_ms, hash64(msgpack.packb([self._job, self._work.task, group, turn])))
        if given.state:
            self._work.restore(given.state, state)
        passed = ((rows.LETTER, letter) for letter in given.letters)
        for out, value in () if given.state else chain(passed, self._work.gather(given, state)):
            try:
                made.add(out, value)
            except Unfit as error:
                raise self._work.failed(error, None) from error
            if made.full:
                yield made.frame()
        wake = self._work.wake_ms(state) if self._timed else None
        if wake is not None and wake != wake_ms:
            self._handle.registerTimer(wake)
        self._index.update((turn + 1, wake or 0, state.index))
        yield made.frame()


def _given(frames: Iterable[pandas.DataFrame]) -> Given:
    """Return all rows of a group, in order."""
    found = [row for frame in frames for row in zip(*(frame[name] for name in _DEALT.names[1:5]), strict=True)]
    found.sort(key=lambda row: row[0])
    dealt: list[Dealt] = []
    state: list[Inherited] = []
    letters: list[dict[str, Any]] = []
    notes, now_ms, ended = [], 0, False
    for _, kind, name, payload in found:
        value = unpack(payload)
        if kind >= 0:
            dealt.append((kind, name, value))
            continue
        if kind == _STATE:
            state.append(tuple(value))
            continue
        if kind == _LETTER:
            letters += value
            continue
        now_ms = value[0]
        ended |= kind == _ENDED
        notes += value[1:]
    return Given(now_ms, dealt, notes, ended, state, letters)


@mutable
class _Kept:
    """A group's state in Spark's store."""

    _buckets: Any
    index: bytes | None

    def load(self, number: int) -> bytes | None:
        found = self._buckets.getValue((number,))
        return None if found is None else bytes(found[0])

    def save(self, number: int, data: bytes | None) -> None:
        if data is not None:
            self._buckets.updateValue((number,), (data,))
        elif self._buckets.containsKey((number,)):
            self._buckets.removeKey((number,))


@mutable
class _Made:
    """Segments that a group made, identified by the group's turn and their index in it."""

    now_ms: int
    maker: int
    _count: int = 0
    _columns: tuple[list[Any], list[Any], list[Any]] = field(factory=lambda: ([], [], []), init=False)
    _bytes: int = field(default=0, init=False)

    def add(self, out: str, value: Any) -> None:
        """Add a segment."""
        payload = pack(value)
        for column, said in zip(self._columns, (self._lineage(), out, payload), strict=True):
            column.append(said)
        self._bytes += len(payload)

    @property
    def full(self) -> bool:
        """Whether there are enough segments for one frame."""
        return len(self._columns[0]) >= rows.ROWS_MAX or self._bytes >= rows.BYTES_MAX

    def frame(self) -> pandas.DataFrame:
        """Return the segments so far, and drop them here."""
        found = pandas.DataFrame(dict(zip(rows.ARROW.names, self._columns, strict=True)), dtype=object)
        self._columns, self._bytes = ([], [], []), 0
        return found

    def _lineage(self) -> bytes:
        count = self._count
        self._count += 1
        return make_id(self.now_ms, 0, self.maker, count)
