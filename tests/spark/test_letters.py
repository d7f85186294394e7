"""Dead letters on their way: out of functions and windows, past cuts to the outputs, and back to their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from attrs import evolve

from onyxq.jobs import letters
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Condition, Function, Input, Job, Lifecycle, Output, Reduce, Trigger, Window
from onyxq.jobs.preview import Buckets
from onyxq.jobs.values import pack, unpack
from onyxq.spark.failures import TaskFailed
from onyxq.spark.lineage import child, of_letter
from onyxq.spark.plan import rows
from onyxq.spark.plan.fused import Fused
from onyxq.spark.plan.groups import Given
from onyxq.spark.plan.regions import Region, stages
from tests.spark.naive import HERE

SOURCE = b"s" * 16 + b"\0\0\0\1"
FIVE = {"at": 5, "user": "ann"}


def spoilt(segment: dict[str, Any]) -> list[dict[str, Any]]:
    """Change the segment, and then fail if it has no user."""
    segment["seen"] = True
    return [segment, {"at": segment["at"], "user": segment["user"]}]


def unfit(segment: dict[str, Any]) -> list[Any]:
    """Return one value that fits, and one that does not."""
    return [segment, 1j]


def job(fn: Any = spoilt, **more: Any) -> Job:
    """Return a job whose function leads to an output and, through another one, to a window."""
    made = Job(
        id="j",
        workflow=[("in", "f"), ("f", "out"), ("f", "g"), ("g", "w"), ("w", "counts")],
        catalog=[
            Input("in", queue="in"),
            Function("f", fn),
            Function("g", f"{HERE}:same"),
            Reduce("w"),
            Output("out", format="json", path="/out"),
            Output("counts", format="json", path="/counts"),
        ],
        windows=[Window("w", "w", "fixed", range_ms=10, key="user", time="at", aggregation="count")],
        triggers=[Trigger("w")],
        dead_letters=True,
        **more,
    )
    return decode(encode(made))


def regions(made: Job) -> Iterator[Region]:
    """Yield all regions of a job."""
    return (region for stage in stages(made) for side in stage.sides for region in side)


def region(made: Job, to: str) -> Fused:
    """Return the region that leads to a task."""
    return next(Fused(made, one) for one in regions(made) if any(edge[1] == to for edge in one.wanted))


def letters_of(found: list[Any]) -> list[dict[str, Any]]:
    """Return the dead letters in rows."""
    return [unpack(payload) for out, _, payload in found if out == rows.LETTER]


def test_a_segment_that_fails_is_a_letter_and_nothing_else() -> None:
    """It is what the function got. Each way has a letter of its own, with another lineage."""
    made = job()
    ways = {}
    for to, way in (("out", ""), ("w", "w")):
        found = region(made, to).segment(SOURCE, {"at": 5})
        (letter,) = letters_of(found)
        assert len(found) == 1 and (letter["task"], letter["way"], letter["segment"]) == ("f", way, {"at": 5})
        assert (letter["error"], letter["message"]) == ("KeyError", "'user'")
        assert '"user": segment["user"]' in letter["traceback"] and "fused.py" not in letter["traceback"]
        ways[way] = found[0][1]
    assert ways[""] == of_letter(child(SOURCE, 0, 0), "", "f") != ways["w"]


def test_a_value_that_does_not_fit_leaves_no_other_value_behind() -> None:
    """Otherwise the values before it would count twice once the letter is sent again."""
    found = region(job(unfit), "out").segment(SOURCE, FIVE)
    (letter,) = letters_of(found)
    assert len(found) == 1 and letter["error"] == "Unfit" and letter["segment"] == FIVE


def test_conditions_and_lifecycles_come_first() -> None:
    """A condition may take the exception; a lifecycle may restart or kill the job."""
    taken = Condition("f", to="none", exceptions=True, short_circuit=True)
    assert region(job(flow_conditions=[taken]), "out").segment(SOURCE, {"at": 5}) == []
    for policy, restart in (("restart", True), ("kill", False)):
        with pytest.raises(TaskFailed) as caught:
            region(job(lifecycles=[Lifecycle("f", on_exception=policy)]), "out").segment(SOURCE, {"at": 5})
        assert caught.value.failure.restart is restart
    assert letters_of(region(job(lifecycles=[Lifecycle("f", on_exception="defer")]), "out").segment(SOURCE, {"at": 5}))


def test_a_failure_of_an_inputs_predicate_fails_the_job() -> None:
    """No task has failed, so there is none to send the segment to again."""
    wrong = Condition("in", to=["f"], when=f"{HERE}:is_free")
    with pytest.raises(TaskFailed) as caught:
        region(job(flow_conditions=[wrong]), "out").segment(SOURCE, {"at": 5})
    assert caught.value.failure.task == "in"


def test_one_region_passes_on_what_comes_out_of_a_window() -> None:
    """A letter keeps its lineage; regions that do not lead on from there drop none."""
    made = job()
    letter = letters.failed(task="w", way="w", segment=FIVE, error=("E", "m", ""))
    passing = [
        [*Fused(made, one).batch([(SOURCE, letter, rows.LETTER)], {})] for one in regions(made) if one.entry == "w"
    ]
    assert passing == [[(rows.LETTER, SOURCE, pack(letter))]]


def test_a_letter_that_is_sent_again_goes_to_its_task_on_its_way_only() -> None:
    """The conditions of the input are passed, and the segment is processed like any other."""
    old = job(flow_conditions=[Condition("in", to="none", short_circuit=True)])
    made = letters.requeued(old, id="again")
    for to, way in (("out", ""), ("w", "w")):
        data = [
            letters.stamped({"task": "f", "way": one, "segment": FIVE, "error": "E", "message": ""}, job="j", batch=1,
                            attempt=1)
            for one in ("", "w")
        ]  # fmt: skip
        found = region(made, to)
        assert found.way == way
        batch = pyarrow.RecordBatch.from_pydict({"lineage": [SOURCE] * 2, "payload": data})
        segments = [*rows.segments([batch], rows.LETTERS, entry="in", place="", way=found.way)]
        assert segments == [(SOURCE, FIVE, "f")]
        out = [(one, unpack(payload)) for one, _, payload in found.batch(segments, {}, letters=True)]
        assert [one for one, _ in out] == [to, to] and out[-1][1] == FIVE
    late = region(made, "w").segment(SOURCE, FIVE, "w", again=True)
    assert [(out, unpack(payload)) for out, _, payload in late] == [("w", FIVE)]


# --- windows --------------------------------------------------------------------------


class State:
    """The state of a group."""

    def __init__(self) -> None:
        self.index: bytes | None = None
        self._buckets = Buckets()
        self.load, self.save = self._buckets.load, self._buckets.save


def gathered(made: Job, *batches: list[dict[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
    """Yield for each batch what its dealer refuses and its group makes, and in the end what all windows emit."""
    from onyxq.spark.plan.windows import Gathering

    work, state = Gathering(encode(made), "w"), State()
    for number, batch in enumerate([*batches, None]):
        dealer = work.dealer()
        refused = [dealer.add(SOURCE, 0, unpack(pack(one)), number) for one in batch or ()]
        dealt = [(kind, name, unpack(pack([*value]))) for kind, name, value in dealer.take()]
        given = Given(number, dealt, [dealer.note()] if batch else [], ended=batch is None)
        out = [(to, unpack(pack(one))) for to, one in work.gather(given, state) if not to.startswith("<late>")]
        yield [(rows.LETTER, one) for one in refused if one is not None] + out


def test_late_segments_of_a_window_are_letters() -> None:
    """They have the watermark and their time; a segment of an open window has none."""
    batches = [[{"at": 5 + add, "user": "ann"}, {"at": 25 + add, "user": "bob"}] for add in (0, 2)]
    first, second, end = gathered(job(), *batches)
    assert [to for to, _ in first] == ["w"]
    ((to, letter),) = second
    assert to == rows.LETTER and letter["error"] == letters.LATE
    assert (letter["task"], letter["way"], letter["window"]) == ("w", "w", "w")
    assert (letter["segment"], letter["time_ms"], letter["watermark_ms"]) == ({"at": 7, "user": "ann"}, 7, 25)
    assert [(one["key"], one["value"]) for _, one in end] == [("bob", 2)]


def test_a_segment_that_still_counts_in_one_sliding_window_is_no_letter() -> None:
    """Sent again it would count there twice."""
    sliding = Window("w", "w", "sliding", range_ms=20, slide_ms=10, key="user", time="at", aggregation="count")
    made = evolve(job(), windows=[sliding])
    _, second, _ = gathered(made, [{"at": 25, "user": "bob"}], [{"at": 12, "user": "ann"}, {"at": 3, "user": "ann"}])
    assert [one["segment"]["at"] for to, one in second if to == rows.LETTER] == [3]


def test_a_late_segment_that_extends_an_open_session_is_no_letter() -> None:
    """One that makes a session of its own is."""
    session = Window("w", "w", "session", gap_ms=10, key="user", time="at", aggregation="count")
    made = evolve(job(), windows=[session])
    _, second, _ = gathered(made, [{"at": 30, "user": "ann"}, {"at": 38, "user": "bob"}],
                            [{"at": 22, "user": "ann"}, {"at": 1, "user": "ann"}])  # fmt: skip
    assert [one["segment"]["at"] for to, one in second if to == rows.LETTER] == [1]


def test_a_late_segment_that_is_sent_again_counts_in_its_window_only() -> None:
    """The other windows of the task have counted it, or have a letter of their own."""
    from onyxq.spark.plan.windows import Gathering

    names = ("w", "hours")
    windows = [Window(name, "w", "fixed", range_ms=10, key="user", time="at", aggregation="count") for name in names]
    old = evolve(job(), windows=windows, triggers=[Trigger(name) for name in names])
    made = decode(encode(letters.requeued(old, id="again")))
    late = letters.late(task="w", window="hours", segment=FIVE, time_ms=5, watermark_ms=25)
    data = letters.stamped(late, job="j", batch=1, attempt=1)
    batch = pyarrow.RecordBatch.from_pydict({"lineage": [SOURCE], "payload": [data]})
    segments = rows.segments([batch], rows.LETTERS, entry="in", place="", way="w")
    ((out, lineage, payload),) = region(made, "w").batch(segments, {}, letters=True)
    dealer = Gathering(encode(made), "w").dealer()
    assert dealer.add(lineage, 0, unpack(payload), 1, out) is None
    assert [kind for kind, _, _ in dealer.take() if kind < len(names)] == [1] and dealer.note() == [None, 5]
    again = dealer.add(lineage, 0, {"at": "noon"}, 1, out)
    assert again is not None and again["window"] == "hours"
    letter = letters.letter_in(data)
    assert letters.fits(letter, old) and not letters.fits(evolve(letter, window="days"), old)


def test_a_segment_without_key_time_or_field_is_a_letter_of_the_window() -> None:
    """No window of the task has counted it. A job without dead letters fails."""
    first, _ = gathered(job(), [{"at": 5}, {"at": "noon", "user": "ann"}, FIVE])
    assert [(one["task"], one["error"]) for _, one in first] == [("w", "KeyError"), ("w", "ValueError")]
    summed = Window("w", "w", "fixed", range_ms=10, key="user", time="at", aggregation="sum", field="n")
    made = evolve(job(), windows=[summed])
    first, _ = gathered(made, [FIVE])
    assert [(one["error"], one["segment"]) for _, one in first] == [("KeyError", FIVE)]
    with pytest.raises(TaskFailed, match="task w: KeyError"):
        list(gathered(evolve(job(), dead_letters=False), [{"at": 5}]))
