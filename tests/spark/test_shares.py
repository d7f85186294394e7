"""Written tasks: ids from lineage in runs, segments as tasks, checked options; without Spark."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.facts import pack_task, partition_of_keys, task_header, unpack_task
from onyxq.core.ids import ids_of, make_id, ms_of, partition_of
from onyxq.errors import BadRequest
from onyxq.jobs.values import pack
from onyxq.spark.checkpoint import recorded
from onyxq.spark.failures import TaskFailed
from onyxq.spark.lineage import PREFIX_BYTES, source_prefix
from onyxq.spark.plan import rows
from onyxq.spark.plan.outputs import Routed
from onyxq.spark.queues.arrow import batch_of
from onyxq.spark.queues.options import QueueOutput, read_options, write_options
from onyxq.spark.queues.queue_claims import Held, joined
from onyxq.spark.queues.shares import TASK_BYTES_MAX, Share, task_of
from onyxq.spark.queues.source import digest_of, fitting, held_in, queue_offsets, spread

NOW_MS = 1_800_000_000_000
OUT = QueueOutput("out")


def share(*, partitions: int = 16, now_ms: int = NOW_MS) -> Share:
    """Return a share whose own ids are always the same."""
    numbers = count(7)
    return Share(partitions=partitions, now_ms=now_ms, random_64=lambda: next(numbers))


def lineages(first: int, number: int, *, maker: int = 1, path: bytes = b"") -> list[bytes]:
    """Lineages of consecutive sources."""
    return [make_id(NOW_MS, 3, maker, first + place) + path for place in range(number)]


def made(found: list[list[Any]]) -> dict[bytes, bytes]:
    """Id and payload of all tasks of runs."""
    tasks: dict[bytes, bytes] = {}
    for first, body in found:
        run = unpack_task(body)
        tasks |= zip(map(bytes, ids_of(first, run.count)), run.all_payloads(), strict=True)
    return tasks


# --- ids ----------------------------------------------------------------------------------------


def test_tasks_of_consecutive_sources_are_consecutive() -> None:
    """There is one run for each path of segments; the runs go to one partition together."""
    one = share()
    for lineage in reversed(lineages(100, 50)):
        for ordinal in range(3):
            one.add(OUT, b"%d" % ordinal, lineage=lineage + bytes([ordinal]) * 8)
    found = one.take()
    assert len(found) == 3 and {unpack_task(body).count for _, body in found} == {50}
    assert len({partition_of(first) for first, _ in found}) == 1
    assert {ms_of(first) for first, _ in found} == {NOW_MS}


def test_the_same_lineages_are_the_same_tasks_however_they_are_spread() -> None:
    """Neither writer, order nor pieces matter."""
    rows = [(lineage, b"payload %d" % place) for place, lineage in enumerate(lineages(0, 30) + lineages(5, 9, maker=2))]
    whole, parts, backwards = share(), [share(), share()], share()
    for place, (lineage, payload) in enumerate(rows):
        whole.add(OUT, payload, lineage=lineage)
        parts[place % 2].add(OUT, payload, lineage=lineage)
    for lineage, payload in reversed(rows):
        backwards.add(OUT, payload, lineage=lineage)
    wanted = made(whole.take())
    assert len(wanted) == len(rows)
    assert made(parts[0].take()) | made(parts[1].take()) == wanted == made(backwards.take())


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=60))
def test_different_lineages_are_different_tasks(given_rows: list[tuple[int, int, int]]) -> None:
    """Each keeps its payload in any batch."""
    one = share()
    payloads = {}
    for counter, maker, path in given_rows:
        payload = b"%d/%d/%d" % (counter, maker, path)
        payloads[payload] = None
        one.add(OUT, payload, lineage=make_id(NOW_MS, 0, maker, counter) + bytes([path]) * 8 * bool(path))
    assert sorted(made(one.take()).values()) == sorted(payloads)


def test_two_outputs_of_one_segment_are_two_tasks() -> None:
    """The output is part of the path."""
    one = share()
    for name in ("a", "b"):
        one.add(OUT, b"x", lineage=lineages(0, 1)[0], name=name)
    assert len(made(one.take())) == 2


def test_a_lineage_that_comes_twice_is_refused() -> None:
    """They would be one task, and one payload would be lost."""
    one = share()
    for _ in range(2):
        one.add(OUT, b"x", lineage=lineages(0, 1)[0])
    with pytest.raises(BadRequest) as caught:
        one.take()
    assert caught.value.field == "lineage"


def test_rows_without_lineage_lie_in_runs_over_several_partitions() -> None:
    """They are made by this writer, at the time of writing."""
    one = share()
    for place in range(10_000):
        one.add(OUT, b"%d" % place)
    assert not one.has_room(b"x")
    found = one.take()
    assert len(made(found)) == 10_000 and len(found) <= 12 and len({partition_of(first) for first, _ in found}) > 1
    assert one.take() == [] and one.rows == 10_000


def test_a_piece_has_its_limits_and_takes_any_task_alone() -> None:
    """Bytes as well as tasks."""
    one = share()
    assert one.has_room(bytes(3 << 20))
    one.add(OUT, bytes(1 << 20))
    assert one.has_room(bytes(1 << 20)) and not one.has_room(bytes((1 << 20) + 1))


def test_keys_decide_about_partitions_and_delays_about_times() -> None:
    """A task with a key is a run of its own; an old lineage does not affect the due time."""
    one = share()
    for lineage in lineages(0, 5):
        one.add(QueueOutput("out", 4, delay_ms=500), b"x", lineage=lineage, key="k")
    found = one.take()
    assert len(found) == 5 and {partition_of(first) for first, _ in found} == {partition_of_keys("out", "k", 16)}
    assert {ms_of(first) for first, _ in found} == {NOW_MS + 500}
    assert task_header(found[0][1])[0] == {"ordering_key": "k", "priority": 4, "queue": "out"}
    one.add(OUT, b"x", lineage=make_id(5, 0, 1, 1))
    assert ms_of(one.take()[0][0]) == NOW_MS


# --- segments -------------------------------------------------------------------------------------


class _Sending:
    """Refuses the tasks before the one that it gets."""

    def add_task(self, output: object, payload: bytes, **said: Any) -> None:
        raise BadRequest("another task is refused", field="data")


def test_a_refusal_of_other_tasks_makes_no_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails the job. A segment that is itself too large becomes a letter, whose size is checked as well."""
    queues = {"out": {"queue": "out"}, rows.LETTER: {"queue": "letters", "own": True}}
    options = {"job": "j", "version": "1", "attempt": "1", "connect": "127.0.0.1:1"}
    routed = Routed({}, options | {"letters": json.dumps(["out"]), "outputs": json.dumps(queues)})
    monkeypatch.setattr(routed, "_sending", lambda batch: _Sending())
    for segment, said in ((b"small", "another task is refused"), (bytes(TASK_BYTES_MAX + 1), "in one task; at most")):
        with pytest.raises(Exception, match=said):
            routed._write([("out", bytes(28), pack(segment))], None, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_task_whose_json_is_none_is_named(payload: bytes) -> None:
    """Peers do not look into the data of a task. To start the job again would not help."""
    task = make_id(1, 0, 2, 3)
    (batch,) = batch_of([(task, pack_task({"queue": "in", "format": "json"}, [payload]))], 1_000)
    with pytest.raises(TaskFailed, match=f"task in: .*task {task.hex()} has the format json") as caught:
        list(rows.segments([batch], rows.QUEUE, entry="in", place="j/0"))
    assert (caught.value.failure.task, caught.value.failure.restart) == ("in", False)


def test_bytes_stay_bytes_and_the_rest_is_json() -> None:
    """One field is the ordering key, if the output has one."""
    for size in (0, 3, 300, 70_000):
        assert task_of(OUT, msgpack.packb(bytes(size)), "o")[1:] == (bytes(size), None)
    output, payload, key = task_of(OUT, msgpack.packb({"a": [1, "ü"]}), "o")
    assert (output.format, json.loads(payload), key) == ("json", {"a": [1, "ü"]}, None)
    keyed = QueueOutput("out", ordering_key="user")
    assert task_of(keyed, msgpack.packb({"user": 7}), "o")[2] == "7"
    for segment in ({"a": b"x"}, {"a": float("nan")}):
        with pytest.raises(BadRequest) as caught:
            task_of(OUT, msgpack.packb(segment), "o")
        assert caught.value.field == "payload"
    for segment in (7, {"other": 1}, {"user": ""}, {"user": "x" * 201}, {"user": 10**200}):
        with pytest.raises(BadRequest) as caught:
            task_of(keyed, pack(segment), "o")
        assert caught.value.field == "ordering_key"


# --- reading --------------------------------------------------------------------------------------


def test_bodies_become_arrow_batches_with_lineage() -> None:
    """Payloads are unchanged; lineages differ from ids in time and maker, but not in their counters."""
    bodies = []
    for maker, form in ((1, "json"), (2, "bytes")):
        header = {"queue": "q", "format": form} if form == "json" else {"queue": "q"}
        bodies.append((make_id(5, 1, maker, 10), pack_task(header, [b"%d" % place for place in range(20)])))
    (batch,) = batch_of(bodies, NOW_MS)
    assert batch.column("payload").to_pylist() == [b"%d" % place for place in range(20)] * 2
    assert batch.column("format").to_pylist() == ["json"] * 20 + ["bytes"] * 20
    ids = [bytes(one) for first, _ in bodies for one in ids_of(first, 20)]
    assert batch.column("id").to_pylist() == ids
    wanted = [source_prefix(one[:PREFIX_BYTES], NOW_MS) + one[PREFIX_BYTES:] for one in ids]
    assert batch.column("lineage").to_pylist() == wanted and len(set(wanted)) == 40
    assert [batch.num_rows for batch in batch_of(bodies * 600, NOW_MS)] == [10_000, 10_000, 4_000]


def test_runs_are_spread_evenly_and_joined() -> None:
    """No task is lost or doubled."""
    held = [Held(make_id(1, 0, 7, 0), 700, 5), Held(make_id(1, 0, 8, 0), 1, 5), Held(make_id(1, 0, 9, 20), 300, 6)]
    shares = spread(held, 4)
    assert [sum(size for _, size in one) for one in shares] == [251, 251, 251, 248]
    tasks = [one for part in shares for first, size in part for one in ids_of(first, size)]
    assert tasks == [one for first, size, *_ in held for one in ids_of(first, size)]
    cut = [
        Held(make_id(1, 0, 7, start), 10, 5) for start in range(0, 2_048, 10) if start // 1_024 == (start + 9) // 1_024
    ]
    assert sum(one.count for one in joined(cut)) == sum(one.count for one in cut)
    assert joined([Held(make_id(1, 0, 7, 1_023), 1, 5), Held(make_id(1, 0, 7, 1_024), 1, 5)])[1].count == 1
    assert joined([Held(make_id(1, 0, 7, 0), 1, 5), Held(make_id(1, 0, 7, 1), 1, 6)])[0].count == 1


def test_offsets_are_recorded_without_claims_and_still_tell_batches_apart(tmp_path: Path) -> None:
    """Spark's offsets of other sources are unchanged; those of queues have its text form, because it compares texts."""
    claims = [[make_id(1, 0, 7, 0).hex(), 5, 9]]
    queue = {"onyxq": 1, "n": 3, "time_ms": NOW_MS, "claims": claims, "digest": digest_of(claims)}
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(queue), '{"logOffset":4}', "-"])
    assert held_in(queue_offsets(text)[0]) == [Held(make_id(1, 0, 7, 0), 5, 9)]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(text)
    lean = msgpack.unpackb(recorded(str(tmp_path), 3))["offsets"].decode()
    assert queue_offsets(lean) == [queue | {"claims": []}]
    assert lean.splitlines()[2:] == [json.dumps(queue | {"claims": []}), '{"logOffset":4}', "-"]


def test_a_queue_that_is_used_twice_in_a_plan_has_claimed_its_tasks_once() -> None:
    """Spark records its offset once for each use."""
    claims = [[make_id(1, 0, 7, 0).hex(), 5, 9]]
    queue = {"onyxq": 1, "n": 3, "time_ms": NOW_MS, "claims": claims, "digest": digest_of(claims)}
    other = queue | {"digest": "another"}
    text = "\n".join(map(json.dumps, [queue, other, queue]))
    assert queue_offsets(text) == [queue, other]


# --- options --------------------------------------------------------------------------------------


def test_queues_of_onyxq_fit_no_pattern() -> None:
    """A stream of all queues would otherwise take the timers of the cluster."""
    names = ["onyxq.timers", "onyxq.flows", "mail.in", "mail.out", "bills"]
    assert fitting(names, ["*"]) == ["bills", "mail.in", "mail.out"]
    assert fitting(names, ["onyxq.*", "mail.*"]) == ["mail.in", "mail.out"]
    assert fitting(names, ["onyxq.flows", "b*"]) == ["bills", "onyxq.flows"]


def test_options_name_what_is_wrong() -> None:
    """The error says what was expected, or the most similar name."""
    good = {"connect": "127.0.0.1:1", "queue": "q"}
    cases: list[tuple[Any, dict[str, str], str]] = [
        (read_options, {}, "queue"),
        (read_options, good | {"queue": " , "}, "queue"),
        (read_options, good | {"connect": "nowhere"}, "connect"),
        (read_options, good | {"max_rows": "0"}, "max_rows"),
        (read_options, good | {"max_rows": "many"}, "max_rows"),
        (read_options, good | {"lease_ms": "5"}, "lease_ms"),
        (read_options, good | {"que": "q"}, "que"),
        (read_options, good | {"state": "ready"}, "state"),
        (read_options, good | {"job": "j"}, "version"),
        (write_options, good | {"priority": "x"}, "priority"),
        (write_options, good | {"format": "xml"}, "format"),
        (write_options, good | {"job": "j", "version": "1"}, "job"),
    ]
    for check, options, field in cases:
        with pytest.raises(BadRequest) as caught:
            check(options, **({"streaming": True} if check is read_options else {}))
        assert caught.value.field == field, (options, caught.value)
    for state in ("red", None):
        with pytest.raises(BadRequest) as caught:
            read_options(good | ({"state": state} if state else {}), streaming=False)
        assert caught.value.field == "state"


def test_options_have_defaults_and_ignore_case() -> None:
    """Spark passes them in this form."""
    found = read_options({"Connect": "127.0.0.1:1", "QUEUE": "q", "job": "j", "version": "4"}, streaming=True)
    assert (found.queue, found.worker, found.max_rows, found.lease_ms) == ("q", "job/j/4", 10_000, 60_000)
    wanted = write_options({"CONNECT": "127.0.0.1:1", "queue": "x", "delay_ms": "5"})
    assert (wanted.output.queue, wanted.output.delay_ms, wanted.output.format) == ("x", 5, "bytes")


def test_a_job_does_not_commit_again_what_the_log_had_when_its_query_began() -> None:
    """Spark repeats it if its own log lacks it; no request is sent, and nothing is written."""
    options = {"connect": "127.0.0.1:1", "job": "j", "version": "3", "checkpoint": "/nowhere", "committed": "7"}
    sink = Routed({}, options | {"outputs": '{"o": {"queue": "q"}}'})
    for batch in (6, 7):
        sink.commit([], batch)
    with pytest.raises(FileNotFoundError):
        sink.commit([], 8)
