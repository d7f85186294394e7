"""Topics of Kafka as outputs: a batch counts once, messages have key, value and headers, refused rows never count."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyarrow")

import pyarrow

from onyxq.errors import BadRequest, OnyxqError, Unavailable
from onyxq.jobs.values import pack
from onyxq.spark.files.file_sink import prepared, stage
from onyxq.spark.files.formats import described
from onyxq.spark.files.staging import Folder, Staging
from onyxq.spark.sinks import kafka, tables
from tests.spark.generated_columns import Rows, alike, rows
from tests.spark.hidden_batches import show, staged
from tests.spark.independent_readers import from_json
from tests.spark.kafka_model import Cluster
from tests.spark.kafka_world import REAL, brokers, keep_offset, read, topic

__all__ = ["brokers", "topic"]

COLUMNS = pyarrow.schema([("user", pyarrow.string()), ("n", pyarrow.int64()), ("raw", pyarrow.binary())])


def output(brokers: str, topic: str, folder: Path, schema: Any = None, **options: str) -> Folder:
    """An output that is a topic; ``message__max__bytes`` is the option ``kafka.message.max.bytes``."""
    given = {"brokers": brokers, "topic": topic}
    given |= {f"kafka.{name.replace('__', '.')}" if "__" in name else name: said for name, said in options.items()}
    return Folder("out", "kafka", str(folder / "hidden"), given, "" if schema is None else described(schema))


def drive(out: Folder, number: int, log: list[int]) -> None:
    """Write a batch as a driver does; the log takes each number once."""
    with prepared([out], job="j", batch=number, mark="m", version=1) as found:
        if number in log:
            raise Unavailable("the log refuses a replaced driver")
        log.append(number)
        for one in found:
            one.commit()
    show(out, number)


def complete(out: Folder, number: int, log: list[int]) -> None:
    """Do what the next driver does: give the topic what the log has, or write the batch."""
    if number in log:
        show(out, number)
    else:
        drive(out, number, log)


# --- a model of the brokers: drivers die and overtake each other at every request --------


class Died(Exception):
    """The driver was killed."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Brokers that fence and roll back."""
    found = Cluster()
    monkeypatch.setattr(kafka, "confluent_kafka", found.module)
    return found


def begun(cluster: Cluster, folder: Path) -> tuple[Folder, list[int]]:
    """Return a job that has written a batch and has staged the next one, and its log."""
    cluster.clear()
    out, log = output("model:1", "words", folder), list[int]()
    staged(out, 0, ["a"])
    drive(out, 0, log)
    staged(out, 1, ["b", "c"])
    return out, log


def finished(cluster: Cluster, out: Folder, log: list[int]) -> None:
    """The next drivers complete the batch and write another one; every message counts once."""
    cluster.moment = lambda: None
    complete(out, 1, log)
    show(out, 1)
    staged(out, 2, ["d"])
    drive(out, 2, log)
    assert [json.loads(value) for value in cluster.values] == ["a", "b", "c", "d"]


def dies(cluster: Cluster, out: Folder, log: list[int], step: int) -> bool:
    """Let a driver write the batch until a moment, and return whether it has died by then."""
    left = step

    def moment() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died

    cluster.moment = moment
    with contextlib.suppress(Died, Unavailable):
        drive(out, 1, log)
    return left < 0


def test_a_batch_counts_once_wherever_the_driver_dies(cluster: Cluster, tmp_path: Path) -> None:
    """Before and after each request, with and without the log's commit."""
    outcomes = set()
    for step in itertools.count():
        out, log = begun(cluster, tmp_path / str(step))
        dead = dies(cluster, out, log, step)
        outcomes.add((1 in log, len(cluster.values)))
        finished(cluster, out, log)
        if not dead:
            break
    assert outcomes == {(False, 1), (True, 1), (True, 3)}


def overtaken(cluster: Cluster, out: Folder, log: list[int], step: int, other: Callable[[], None]) -> bool | None:
    """Let a driver write the batch, and another one do something at a moment.

    Return whether the first one was fenced; None if it has ended before the moment.
    """
    left = step

    def moment() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            other()

    cluster.moment = moment
    try:
        complete(out, 1, log)
    except OnyxqError as error:
        return "_FENCED" in error.message
    return False if left < 0 else None


def test_a_batch_counts_once_if_a_new_driver_overtakes_the_old_one(cluster: Cluster, tmp_path: Path) -> None:
    """Before and after each request, the new driver writes the batch, or finds it in the log."""
    fenced = 0
    for step in itertools.count():
        out, log = begun(cluster, tmp_path / str(step))
        found = overtaken(cluster, out, log, step, partial(complete, out, 1, log))
        finished(cluster, out, log)
        if found is None:
            break
        fenced += found
    assert fenced > 3


def test_a_batch_counts_once_if_an_old_driver_returns(cluster: Cluster, tmp_path: Path) -> None:
    """It was replaced after the log's commit, and writes the batch before and after each request of the new one."""
    fenced = 0
    for step in itertools.count():
        out, log = begun(cluster, tmp_path / str(step))
        log.append(1)
        files = tables.Files(out.system()[0], _kept(out, tmp_path / f"kept-{step}"))
        late = partial(tables.write, out, files, tables.Batch("j", "out", "m", 1, 1))
        found = overtaken(cluster, out, log, step, late)
        finished(cluster, out, log)
        if found is None:
            break
        fenced += found
    assert fenced > 3


def _kept(out: Folder, to: Path) -> list[str]:
    """The staged files, copied to where a publish does not remove them."""
    system, aside = out.hidden("j")
    to.mkdir()
    for file in Path(aside).glob("part-*"):
        system.copy_file(str(file), f"{to}/{file.name}")
    return [str(file) for file in to.iterdir()]


def test_messages_do_not_count_if_the_log_refuses_the_batch(cluster: Cluster, tmp_path: Path) -> None:
    """The transaction is aborted at once, so that it does not hold up consumers."""
    out, log = begun(cluster, tmp_path)
    log.append(1)
    with pytest.raises(Unavailable, match="the log refuses"):
        drive(out, 1, log)
    assert cluster.values == [b'"a"'] and not cluster.open


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=rows(nested=True, least=1))
def test_values_come_back_unchanged(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, made: Rows) -> None:
    """All types of columns; a row that does not fit is refused."""
    cluster.clear()
    schema = made.arrow.append(pyarrow.field("row", pyarrow.int64()))
    out, kept = output("model:1", "words", tmp_path_factory.mktemp("typed"), schema), []
    task = Staging({"out": out}, job="j", batch=0, part=0)
    for number, row in enumerate(made.rows):
        try:
            task.add("out", pack({**row, "row": number}))
            kept.append({**row, "row": number})
        except BadRequest as error:
            assert error.message.startswith("output out: ")
    stage([out], task.finish(), job="j", batch=0, mark="m")
    drive(out, 0, [])
    assert alike(from_json(b"".join(one + b"\n" for one in cluster.values), schema), kept)


# --- librdkafka with brokers ---------------------------------------------------------------


def test_rows_become_messages(brokers: str, topic: str, tmp_path: Path) -> None:
    """Without a schema a message is the segment as JSON; the key decides its partition as in Java."""
    out = output(brokers, topic, tmp_path, key="user", headers="trace, n", compression__type="lz4")
    tables.check(out, "")
    rows = [{"user": "a", "n": 1, "trace": "x"}, {"user": None, "n": 2}, {"user": "a", "n": 3, "trace": None}]
    staged(out, 0, rows)
    show(out, 0)
    found = sorted(read(brokers, topic), key=lambda message: json.loads(message.value())["n"])
    assert [json.loads(message.value()) for message in found] == rows
    assert [message.key() for message in found] == [b"a", None, b"a"]
    assert [message.headers() for message in found] == [[("trace", b"x"), ("n", b"1")], [("n", b"2")], [("n", b"3")]]
    assert found[0].partition() == found[2].partition()


def test_a_column_can_be_the_whole_message(brokers: str, topic: str, tmp_path: Path) -> None:
    """Bytes stay as they are, and None deletes its key in a compacted topic."""
    out = output(brokers, topic, tmp_path, COLUMNS, key="user", value="raw", headers="n")
    tables.check(out, out.schema)
    staged(out, 0, [{"user": "a", "n": 1, "raw": b"\x00\xff"}, {"user": "b"}])
    show(out, 0)
    found = {message.key(): (message.value(), message.headers()) for message in read(brokers, topic)}
    assert found == {b"a": (b"\x00\xff", [("n", b"1")]), b"b": (None, None)}


def test_a_batch_counts_once_however_often_it_is_published(brokers: str, topic: str, tmp_path: Path) -> None:
    """Also for a driver that was replaced and writes an earlier batch."""
    out = output(brokers, topic, tmp_path)
    files = {}
    for number in range(2):
        staged(out, number, [number])
        files[number] = tables.Files(out.system()[0], _kept(out, tmp_path / str(number)))
        show(out, number)
        keep_offset(brokers, topic, "onyxq/j/out/m", number + 1)
        show(out, number)
    for number in (0, 1, 0):
        tables.write(out, files[number], tables.Batch("j", "out", "m", number, 1))
    assert sorted(message.value() for message in read(brokers, topic)) == [b"0", b"1"]
    staged(out, 0, [7], mark="other")  # a job that has the same id, after this one
    show(out, 0, mark="other")
    assert sorted(message.value() for message in read(brokers, topic)) == [b"0", b"1", b"7"]


DIES = """
import os, signal, sys
from pathlib import Path
from tests.spark.test_kafka import kafka, output, show
commit = kafka.Prepared.commit
def dies(self):
    if sys.argv[4] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)
    os.kill(os.getpid(), signal.SIGKILL)
kafka.Prepared.commit = dies
show(output(sys.argv[1], sys.argv[2], Path(sys.argv[3])), 0)
"""


@pytest.mark.skipif(not REAL, reason="the mock brokers do not keep transactions; set ONYXQ_TEST_KAFKA")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_driver_leaves_a_batch_that_counts_once(brokers: str, topic: str, tmp_path: Path, when: str) -> None:
    """SIGKILL before Kafka's commit, and between it and the note that the batch is done."""
    out = output(brokers, topic, tmp_path)
    staged(out, 0, [1, 2])
    died = subprocess.run([sys.executable, "-c", DIES, brokers, topic, str(tmp_path), when], timeout=240, check=False)
    assert died.returncode == -signal.SIGKILL
    show(out, 0)
    assert sorted(message.value() for message in read(brokers, topic)) == [b"1", b"2"]


def test_brokers_that_are_away_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such an error is not the job's, so a restart may help."""
    monkeypatch.setattr(kafka, "TIMEOUT_S", 0.5)
    out = output("127.0.0.1:1", "words", tmp_path)
    with pytest.raises(Unavailable, match="output out: "):
        tables.check(out, "")
    staged(out, 0, [1])
    with pytest.raises(Unavailable, match="output out: "):
        show(out, 0)


def test_settings_that_do_not_fit_are_named_before_the_job_starts(brokers: str, topic: str, tmp_path: Path) -> None:
    """The client checks them; passwords come from a file, and are not in the error."""
    settings = tmp_path / "settings"
    for text, options, field, said in (
        ("", {"compression__type": "zip"}, "kafka.compression.type", 'Invalid value "zip"'),
        ("", {"topic": "wrds"}, "topic", "the cluster has no topic 'wrds': create it first"),
        ("# c\n\nsasl.pasword = s3cr3t", {}, "properties", 'No such configuration property: "sasl.pasword"'),
        ("\ns3cr3t", {}, "properties", "properties: line 2 of .*settings must be NAME=VALUE"),
    ):
        settings.write_text(text)
        given = {"topic": topic, "properties": str(settings), **options}
        with pytest.raises(BadRequest, match=f"output out: {said}") as refused:
            tables.check(output(brokers, given.pop("topic"), tmp_path, **given), "")
        assert refused.value.field == f"out.options.{field}"
        assert "s3cr3t" not in refused.value.message
    settings.write_text("sasl.password=s3cr3t\nclient.id=settings\n")
    tables.check(output(brokers, topic, tmp_path, properties=str(settings)), "")


# --- rows and columns that do not fit --------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "usr"}, "usr: is not one of the columns: user, n, raw"),
        ({"key": "user", "value": "raw"}, "n: is neither the key nor the value nor a header"),
        ({"headers": "price"}, r"price: is decimal128\(5, 2\); keys, values and headers are strings, binaries or"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_the_job_starts(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    """No broker is asked."""
    schema = COLUMNS.append(pyarrow.field("price", pyarrow.decimal128(5, 2))) if "headers" in options else COLUMNS
    task = Staging({"out": output("h:1", "t", tmp_path, schema, **options)}, job="j", batch=0, part=0)
    with pytest.raises(BadRequest, match=f"output out: {said}"):
        task.add("out", pack({}))


@pytest.mark.parametrize(
    ("options", "row", "said"),
    [
        ({}, {"at": b"x"}, "at: JSON cannot hold"),
        ({"key": "user"}, "a", "must be a dict, which has the fields of key, value and headers, not the str"),
        ({"key": "user"}, {"user": 1.5}, "user: must be a string, bytes or an integer, not the float"),
        ({"value": "raw"}, {"raw": "x", "n": 1}, "n: is neither the key nor the value nor a header"),
        ({"message__max__bytes": "1000"}, "x" * 950, "the message has up to 1016 bytes, more than kafka.message.max"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(tmp_path: Path, options: dict[str, str], row: Any, said: str) -> None:
    """At the row, so that it can go to another output; the rows around it are written."""
    task = Staging({"out": output("h:1", "t", tmp_path, **options)}, job="j", batch=0, part=0)
    with pytest.raises(BadRequest, match=f"output out: {said}"):
        task.add("out", pack(row))
    task.add("out", pack({name: "x" for name in options.values() if name != "1000"}))
    assert len(task.finish()) == 1


def test_the_largest_message_is_sent(brokers: str, topic: str, tmp_path: Path) -> None:
    """What executors accept, the client accepts."""
    out = output(brokers, topic, tmp_path, headers="h", value="v", message__max__bytes="2000")
    task = Staging({"out": out}, job="j", batch=0, part=0)
    for size in itertools.count(1_800):
        try:
            task.add("out", pack({"v": "x" * size, "h": "y"}))
        except BadRequest:
            break
    stage([out], task.finish(), job="j", batch=0, mark="m")
    show(out, 0)
    assert max(len(message.value()) for message in read(brokers, topic)) == size - 1
