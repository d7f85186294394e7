"""Checkpoints that match the log: which are kept, copied, created and refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgpack
import pytest
from attrs import evolve

pytest.importorskip("pyarrow")

from onyxq.errors import Incomplete
from onyxq.jobs.model import Input, Job, Output, Reduce, Sql, Window
from onyxq.spark.checkpoint import (
    RECORD_BYTES_MAX,
    Checkpoints,
    continue_after,
    finish,
    mark_of,
    news_of,
    note_job,
    offsets_of,
    recorded,
    restored_batch,
)

JOB = Job(
    id="j",
    workflow=[("in", "out")],
    catalog=[Input("in", queue="q"), Output("out", queue="r")],
)
STATEFUL = Job(
    id="j",
    workflow=[("in", "sum"), ("sum", "out")],
    catalog=[Input("in", queue="q"), Reduce("sum"), Output("out", queue="r")],
    windows=[Window("w", "sum")],
)
QUERY = Job(
    id="j",
    workflow=[("in", "large"), ("large", "out")],
    catalog=[Input("in", queue="q"), Sql("large", "select * from `in` where n > 5"), Output("out", queue="r")],
)
CLAIMS = [["00" * 20, 7, 3]]


def planned(folder: Path, batches: int, *, committed: int, files: int = 0) -> None:
    """Make a checkpoint of Spark with a number of planned and of completed batches."""
    for name in ("offsets", "commits", "sources/0", "state/0/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "some"}))
    for batch in range(batches):
        said = json.dumps({"onyxq": 1, "n": batch + 1, "claims": CLAIMS})
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs":1}}\n{said}')
        (folder / "offsets" / f".{batch}.crc").write_text("")
        (folder / "state" / "0" / "0" / f"{batch}.delta").write_text("")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text("v1\n{}")
    for number in range(files):
        (folder / "sources" / "0" / str(number)).write_text(f"v1\n{number}")


def names(folder: Path, kind: str) -> list[str]:
    """Return the batches that have a file."""
    return sorted(file.name for file in (folder / kind).iterdir())


def test_a_job_without_batches_begins_in_an_empty_folder(tmp_path: Path) -> None:
    """The folder does not exist yet, and belongs to the job's version only."""
    assert Checkpoints(str(tmp_path)).fit(JOB, version=4, batch=-1, recorded=b"") == f"{tmp_path}/j/4"
    assert not (tmp_path / "j" / "4").exists()


def test_what_was_planned_beyond_the_log_is_dropped(tmp_path: Path) -> None:
    """Its checksums are deleted too; state beyond it stays, because nothing refers to it."""
    planned(tmp_path / "j" / "4", 3, committed=2)
    record = recorded(str(tmp_path / "j" / "4"), 0)
    Checkpoints(str(tmp_path)).fit(JOB, version=4, batch=0, recorded=record)
    assert names(tmp_path / "j" / "4", "offsets") == [".0.crc", "0"]
    assert names(tmp_path / "j" / "4", "commits") == ["0"]
    assert names(tmp_path / "j" / "4", "state/0/0") == ["0.delta", "1.delta", "2.delta"]


def test_folders_of_earlier_versions_stay_while_state_may_name_them(tmp_path: Path) -> None:
    """Spark stores the whole path of a schema, and copies name the earlier folder."""
    planned(tmp_path / "j" / "4", 2, committed=2)
    record = recorded(str(tmp_path / "j" / "4"), 1)
    for version in (5, 6):
        Checkpoints(str(tmp_path)).fit(STATEFUL, version=version, batch=1, recorded=record)
    assert names(tmp_path, "j") == ["4", "5", "6"]


@pytest.mark.parametrize("batch", [-1, 0])
@pytest.mark.parametrize("version", [4, 5])
def test_state_of_a_first_batch_that_spark_has_not_done_is_dropped(tmp_path: Path, batch: int, version: int) -> None:
    """Spark refuses a first batch if there is state, from this driver or the one before, logged or not."""
    planned(tmp_path / "j" / "4", 1, committed=0)
    record = b"" if batch < 0 else recorded(str(tmp_path / "j" / "4"), batch)
    Checkpoints(str(tmp_path)).fit(STATEFUL, version=version, batch=batch, recorded=record)
    mine = tmp_path / "j" / str(version)
    assert (mine / "offsets" / "0").exists() == (batch == 0)
    assert (mine / "metadata").exists() and not (mine / "state").exists()


def test_a_batch_that_the_log_has_and_spark_does_not_is_kept_for_spark_to_repeat(tmp_path: Path) -> None:
    """The driver died between the log's commit and Spark's record of it."""
    planned(tmp_path / "j" / "4", 3, committed=2)
    record = recorded(str(tmp_path / "j" / "4"), 2)
    Checkpoints(str(tmp_path)).fit(JOB, version=4, batch=2, recorded=record)
    assert names(tmp_path / "j" / "4", "offsets")[-1] == "2"
    assert names(tmp_path / "j" / "4", "commits") == ["0", "1"]


def test_the_next_version_copies_the_one_before_that_has_the_batch(tmp_path: Path) -> None:
    """It does not copy one that lacks the batch; the copy is its own, and the newest of the others is kept."""
    planned(tmp_path / "j" / "4", 3, committed=3)
    planned(tmp_path / "j" / "7", 1, committed=0)
    record = recorded(str(tmp_path / "j" / "4"), 1)
    at = Checkpoints(str(tmp_path)).fit(JOB, version=9, batch=1, recorded=record)
    assert at == f"{tmp_path}/j/9"
    assert names(tmp_path / "j" / "9", "offsets") == [".0.crc", ".1.crc", "0", "1"]
    assert names(tmp_path / "j" / "9", "state/0/0") == ["0.delta", "1.delta", "2.delta"]
    assert sorted(folder.name for folder in (tmp_path / "j").iterdir()) == ["7", "9"]


@pytest.mark.parametrize("version", [4, 9])
def test_a_checkpoint_with_another_attempt_at_the_last_batch_is_not_continued(tmp_path: Path, version: int) -> None:
    """Another peer committed the batch, or a host that was killed. The driver here planned it with other offsets.

    Inputs continue where the log has them. State of the other attempt is refused.
    """
    planned(tmp_path / "other peer", 2, committed=2)
    record = recorded(str(tmp_path / "other peer"), 1)
    planned(tmp_path / "j" / "4", 2, committed=1)
    (tmp_path / "j" / "4" / "offsets" / "1").write_text('v1\n{"batchTimestampMs":9}\n{}')
    with pytest.raises(Incomplete, match="cannot continue on this peer"):
        Checkpoints(str(tmp_path)).fit(STATEFUL, version=version, batch=1, recorded=record)
    assert names(tmp_path / "j" / "4", "state/0/0") == ["0.delta", "1.delta"]
    at = Checkpoints(str(tmp_path)).fit(JOB, version=version, batch=1, recorded=record)
    assert offsets_of(at, 1) == msgpack.unpackb(record)["offsets"]
    assert names(Path(at), "commits") == ["1"]


def test_a_job_without_state_begins_behind_what_the_log_recorded(tmp_path: Path) -> None:
    """It has the number and offsets, and the batch before that Spark needs; the batch counts as done."""
    planned(tmp_path / "old", 6, committed=5, files=3)
    record = recorded(str(tmp_path / "old"), 5, "mark")
    at = Path(Checkpoints(str(tmp_path / "new")).fit(JOB, version=2, batch=5, recorded=record))
    assert (names(at, "offsets"), names(at, "commits")) == (["4", "5"], ["5"])
    assert names(at, "sources/0") == ["0", "1", "2"]
    said = offsets_of(str(at), 5).decode().splitlines()
    assert said[:2] == ["v1", '{"batchTimestampMs":1}']
    assert json.loads(said[2]) == {"onyxq": 1, "n": 6, "claims": []}
    assert mark_of(record) == "mark"


def test_a_job_that_resumes_another_begins_behind_its_batch(tmp_path: Path) -> None:
    """It has no batch of its own yet."""
    planned(tmp_path / "old", 3, committed=3)
    record = recorded(str(tmp_path / "old"), 2)
    at = Path(Checkpoints(str(tmp_path / "new")).fit(JOB, version=2, batch=-1, recorded=record))
    assert (names(at, "offsets"), names(at, "commits")) == (["0"], ["0"])


def test_a_new_driver_of_such_a_job_still_begins_there(tmp_path: Path) -> None:
    """The first driver planned a batch and died. Only the batch is dropped, not the places before it."""
    planned(tmp_path / "old", 3, committed=3)
    record, checkpoints = recorded(str(tmp_path / "old"), 2), Checkpoints(str(tmp_path / "new"))
    before = Path(checkpoints.fit(JOB, version=2, batch=-1, recorded=record))
    (before / "offsets" / "1").write_text("planned")
    at = Path(checkpoints.fit(JOB, version=3, batch=-1, recorded=record))
    assert (names(at, "offsets"), names(at, "commits")) == (["0"], ["0"])
    assert offsets_of(str(at), 0) == offsets_of(str(before), 0)


def test_state_that_cannot_be_reached_is_told(tmp_path: Path) -> None:
    """This is an error instead of a new start; so is a record that the log could not store."""
    planned(tmp_path / "old", 1, committed=1)
    record = recorded(str(tmp_path / "old"), 0)
    with pytest.raises(Incomplete, match="another peer kept its checkpoint"):
        Checkpoints(str(tmp_path / "new")).fit(STATEFUL, version=2, batch=0, recorded=record)
    (tmp_path / "old" / "sources" / "0" / "0").write_text("".join(f"file:///{n * 7919:x}\n" for n in range(200_000)))
    record = recorded(str(tmp_path / "old"), 0)
    assert len(record) <= RECORD_BYTES_MAX
    with pytest.raises(Incomplete, match="too many files"):
        Checkpoints(str(tmp_path / "new")).fit(JOB, version=2, batch=0, recorded=record)


def test_a_frame_task_whose_plan_keeps_no_state_continues_without_the_checkpoint(tmp_path: Path) -> None:
    """The sources in the record show it. With the source that ends all inputs there may be state, which is needed."""
    planned(tmp_path / "old", 3, committed=3, files=2)
    new = Checkpoints(str(tmp_path / "new"))
    with pytest.raises(Incomplete, match="another peer kept its checkpoint"):
        new.fit(QUERY, version=2, batch=2, recorded=recorded(str(tmp_path / "old"), 2, "", ["<end>"]))
    record = recorded(str(tmp_path / "old"), 2, "", ["in"])
    at = Path(new.fit(QUERY, version=2, batch=2, recorded=record))
    assert (names(at, "offsets"), names(at, "commits"), names(at, "sources/0")) == (["1", "2"], ["2"], ["0", "1"])
    assert offsets_of(str(at), 2) == msgpack.unpackb(record)["offsets"]


def test_of_a_long_log_of_files_the_newest_summary_and_what_follows_is_recorded(tmp_path: Path) -> None:
    """Earlier summaries of Spark are not needed."""
    planned(tmp_path / "old", 1, committed=1, files=12)
    for number in (4, 9):
        (tmp_path / "old" / "sources" / "0" / str(number)).rename(
            tmp_path / "old" / "sources" / "0" / f"{number}.compact"
        )
    at = Path(
        Checkpoints(str(tmp_path / "new")).fit(JOB, version=2, batch=0, recorded=recorded(str(tmp_path / "old"), 0))
    )
    assert names(at, "sources/0") == ["10", "11", "9.compact"]


def test_a_repeat_has_the_same_record(tmp_path: Path) -> None:
    """This holds although its file source had recorded more for a later batch that was dropped."""
    planned(tmp_path / "old", 1, committed=1, files=2)
    (tmp_path / "old" / "offsets" / "0").write_text('v1\n{}\n{"logOffset":1}')
    record = recorded(str(tmp_path / "old"), 0)
    (tmp_path / "old" / "sources" / "0" / "2").write_text("v1\n")
    assert recorded(str(tmp_path / "old"), 0) == record


def test_a_job_may_have_a_place_of_its_own(tmp_path: Path) -> None:
    """A path or URI; all its folders go together."""
    checkpoints = Checkpoints(str(tmp_path / "elsewhere"))
    job = evolve(JOB, checkpoint=f"file://{tmp_path}/own/")
    planned(tmp_path / "own" / "j" / "1", 1, committed=1)
    record = recorded(str(tmp_path / "own" / "j" / "1"), 0)
    assert checkpoints.fit(job, version=2, batch=0, recorded=record) == f"file://{tmp_path}/own/j/2"
    assert names(tmp_path / "own" / "j" / "2", "offsets") == [".0.crc", "0"]
    checkpoints.forget(job)
    assert not (tmp_path / "own" / "j").exists()


def test_a_source_that_gave_nothing_to_a_batch_has_no_news(tmp_path: Path) -> None:
    """Its offset and the claims of an earlier batch are left out; offsets of other sources are recorded."""
    planned(tmp_path / "j", 2, committed=0)
    for batch, (one, other) in enumerate([(1, 1), (1, 2)]):
        said = [json.dumps({"onyxq": 1, "n": number, "claims": CLAIMS}) for number in (one, other)]
        (tmp_path / "j" / "offsets" / str(batch)).write_text(
            "\n".join(["v1", f'{{"batchTimestampMs":{batch}}}', *said])
        )
    assert [json.loads(line)["n"] for line in news_of(str(tmp_path / "j"), 0).splitlines()[2:]] == [1, 1]
    assert [json.loads(line).get("n") for line in news_of(str(tmp_path / "j"), 1).splitlines()] == [None, 2]


def test_a_record_is_small_for_queues(tmp_path: Path) -> None:
    """This holds for any number of claims."""
    planned(tmp_path / "old", 1, committed=1)
    assert len(recorded(str(tmp_path / "old"), 0)) < 200
    assert msgpack.unpackb(recorded(str(tmp_path / "old"), 0))["mark"] == ""


def test_another_job_continues_each_input_by_its_name(tmp_path: Path) -> None:
    """Inputs may have another order and more uses; a new input begins at its start."""
    old = tmp_path / "old"
    planned(old, 1, committed=1, files=2)
    (old / "sources" / "2").mkdir()
    (old / "sources" / "2" / "5").write_text("v1\nusers")
    (old / "offsets" / "0").write_text('v1\n{}\n{"logOffset":1}\n{"onyxq":1,"n":3}\n{"logOffset":1}\n{"logOffset":5}')
    record = recorded(str(old), 0, "", ["files", "queue", "files", "users"])
    at = tmp_path / "new"
    (at / "offsets").mkdir(parents=True)
    (at / "offsets" / "0").write_text('v1\n{"new":1}\nseed')
    (at / "sources" / "0").mkdir(parents=True)
    continue_after(str(at), record, ["more", "users", "users", "<end>", "files"])
    said = offsets_of(str(at), 0).decode().split("\n")
    assert said == ["v1", '{"new":1}', "-", '{"logOffset":5}', '{"logOffset":5}', '{"ended": 0}', '{"logOffset":1}']
    found = {
        str(file.relative_to(at / "sources")): file.read_text()
        for file in (at / "sources").rglob("*")
        if file.is_file()
    }
    assert found == {"1/5": "v1\nusers", "3/0": "v1\n0", "3/1": "v1\n1"}
    assert restored_batch(str(at)) == 0


def test_the_state_of_an_ended_job_is_kept_for_a_time(tmp_path: Path) -> None:
    """The next job that ends at the same place removes what was kept until a time that has passed."""
    checkpoints = Checkpoints(str(tmp_path))
    for name in ("early", "late", "j", "foreign"):
        planned(tmp_path / name / "4", 1, committed=1)
    checkpoints.forget(evolve(STATEFUL, id="early"), until_ms=1)
    checkpoints.forget(evolve(STATEFUL, id="late"), until_ms=1 << 50)
    checkpoints.forget(JOB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "late"]
    for half in ("", "17", "17 4"):  # A host died while it wrote the time: the state stays.
        (tmp_path / "late" / "ended").write_text(half)
        checkpoints.forget(JOB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "late"]


def test_a_job_under_the_id_of_an_ended_one_loses_nothing_when_the_time_of_that_one_has_passed(tmp_path: Path) -> None:
    """It begins with an empty folder; a replaced driver of the ended job deletes nothing."""
    checkpoints = Checkpoints(str(tmp_path))
    planned(tmp_path / "j" / "4", 2, committed=2)
    checkpoints.forget(STATEFUL, version=4, until_ms=1 << 50)
    checkpoints.fit(STATEFUL, version=4, batch=1, recorded=recorded(str(tmp_path / "j" / "4"), 1))
    assert names(tmp_path / "j" / "4", "commits") == ["0", "1"]
    (tmp_path / "j" / "ended").write_text("1 4\n")  # Its time passes.
    checkpoints.fit(STATEFUL, version=9, batch=-1, recorded=b"")
    assert not (tmp_path / "j").exists()
    planned(tmp_path / "j" / "9", 1, committed=1)
    checkpoints.forget(evolve(JOB, id="other"))
    assert names(tmp_path / "j" / "9", "commits") == ["0"]


def test_state_is_taken_from_the_driver_that_committed_the_last_batch(tmp_path: Path) -> None:
    """Another driver may have planned a batch of the same number."""
    for version in (4, 6):
        planned(tmp_path / "j" / str(version), 2, committed=2)
        note_job(str(tmp_path / "j" / str(version)), b"job")
    record = recorded(str(tmp_path / "j" / "4"), 1)
    (tmp_path / "j" / "6" / "offsets" / "1").write_text('v1\n{"batchTimestampMs":9}\n{}')
    assert Checkpoints(str(tmp_path)).left_by("j", JOB, 1, record) == f"{tmp_path}/j/4"


def test_a_batch_whose_end_spark_did_not_note_is_noted_from_its_files(tmp_path: Path) -> None:
    """The driver that committed it counts, and the last attempt of each part."""
    for version in (4, 6):
        folder = tmp_path / "j" / str(version)
        planned(folder, 2, committed=1)
        note_job(str(folder), b"job")
        for order, name in enumerate(
            ("0/0/1_a0.zip", "0/0/2_a1.zip", "0/0/2_a2.changelog", "0/1/2_b1.zip", "0/2/2.tmp")
        ):
            (folder / "state" / name).parent.mkdir(exist_ok=True)
            (folder / "state" / name).write_text("")
            os.utime(folder / "state" / name, (order, order))
    record = recorded(str(tmp_path / "j" / "4"), 1)
    left = Checkpoints(str(tmp_path)).left_by("j", JOB, 1, record)
    finish(left, 1)
    assert left == f"{tmp_path}/j/4"
    version, said = (tmp_path / "j" / "4" / "commits" / "1").read_text().splitlines()
    assert (version, json.loads(said)["stateUniqueIds"]) == ("v2", {"0": [["a2"], ["b1"]]})
    assert not (tmp_path / "j" / "6" / "commits" / "1").exists()
