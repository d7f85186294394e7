"""The files of savepoints, without Spark: copied while a query runs, complete or absent, deleted when they are gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from attrs import evolve

from log_entries import begin_savepoint, commit_batch
from onyxq.client import Client
from onyxq.core.replica import Job as Known
from onyxq.errors import Incomplete
from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Input, Job, Output
from onyxq.spark.checkpoint import Checkpoints, adopt, last_done, note_job, recorded, restored_batch, save
from onyxq.spark.host import Asked, _checkpoints
from onyxq.spark.progress import EVENT_TIME_MAX_MS
from onyxq.spark.savepoints import Savepoints, Source, beginning
from onyxq.spark.state_copy import Resumed
from tests.interfaces.batches_world import JobsCluster, jobs_cluster

FILES = Job(
    id="j",
    workflow=[("in", "out")],
    catalog=[Input("in", format="text", path="/data", bounded=False), Output("out", queue="b")],
)


def write(path: Path, text: str) -> None:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def checkpoint(folder: Path, *batches: int, first: Path | None = None) -> Path:
    """Write a checkpoint with state, as Spark leaves it after some batches; return its folder.

    ``first``: the folder that the notes about the state name, as after a change of driver.
    """
    schema = "state/0/_stateSchema/default/0_a1"
    note = {
        "operatorInfo": {"operatorId": 0},
        "stateStoreInfo": [{"stateSchemaFilePaths": [f"file:{first or folder}/{schema}"]}],
    }
    write(folder / "metadata", '{"id": "q"}')
    write(folder / schema, "schema")
    write(folder / "state/0/_metadata/v2/0", f"v2\n{json.dumps(note)}")
    for batch in batches:
        write(folder / f"offsets/{batch}", f'v1\n{{"conf": {{}}}}\n{{"logOffset":{batch}}}')
        write(folder / f"commits/{batch}", "v2\n{}")
        write(folder / f"sources/0/{batch}", f'v1\n{{"path":"/data/{batch}"}}')
        write(folder / f"state/0/0/{batch + 1}_ab-1.changelog", f"changes of {batch}")
    write(folder / "state/0/0/1_ab-1.zip", "snapshot")
    write(folder / "state/0/0/SSTs/8-ab.sst", "table")
    note_job(str(folder), encode(FILES))
    return folder


def names_in(folder: Path) -> set[str]:
    """Return the files of a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_savepoint_has_all_files_of_its_batch_and_needs_no_other_folder(tmp_path: Path) -> None:
    """Those of later batches are left out; the notes name schemas in the savepoint; the job's own notes stay."""
    old = tmp_path / "1"
    folder = checkpoint(tmp_path / "2", 0, 1, 2, first=old)
    write(folder / "offsets/3", "v1\n{}\n-")  # It is planned, and not done.
    write(folder / "state/0/0/4_cd-1.changelog", "half")
    before = {name: (folder / name).read_bytes() for name in names_in(folder)}
    place = tmp_path / "saved"
    assert last_done(str(folder)) == 2
    size = save(str(folder), 1, str(place))
    assert {name: (folder / name).read_bytes() for name in names_in(folder)} == before
    shutil.rmtree(folder)
    beyond = {"offsets/2", "offsets/3", "commits/2", "state/0/0/3_ab-1.changelog", "state/0/0/4_cd-1.changelog"}
    assert names_in(place) == before.keys() - beyond
    note = json.loads((place / "state/0/_metadata/v2/0").read_text().partition("\n")[2])
    (schema,) = note["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert Path(schema).read_text() == "schema" and schema.startswith(str(place))
    assert size == sum((place / name).stat().st_size for name in names_in(place))
    said = msgpack.unpackb(recorded(str(place), 1, "", ["in"]))
    assert said["offsets"].endswith(b'{"logOffset":1}') and said["inputs"] == ["in"]


def test_a_copy_during_which_spark_may_have_deleted_files_does_not_count(tmp_path: Path) -> None:
    """Spark keeps the files of the last ten batches."""
    folder = checkpoint(tmp_path / "1", *range(8))
    with pytest.raises(Incomplete, match="finished too many batches while the state of batch 1 was copied"):
        save(str(folder), 1, str(tmp_path / "saved"))
    with pytest.raises(Incomplete, match="batch 9 was copied"):
        save(str(folder), 9, str(tmp_path / "other"))


@pytest.mark.parametrize("watermark_ms", [70_000, EVENT_TIME_MAX_MS])
def test_a_job_with_the_same_plan_begins_with_a_copy_of_the_whole_checkpoint(tmp_path: Path, watermark_ms: int) -> None:
    """It is a query of its own. An end of event time is taken back to the watermark of the last batch."""
    folder, place = checkpoint(tmp_path / "old" / "2", 0, 1, 2), tmp_path / "checkpoints" / "j" / "7"
    write(folder / "offsets/1", 'v1\n{"batchWatermarkMs": 60000, "conf": {}}\n{"logOffset":1}')
    write(folder / "commits/1", f'v2\n{{"nextBatchWatermarkMs": {watermark_ms}, "stateUniqueIds": {{}}}}')
    adopt(str(folder), 1, str(place))
    assert restored_batch(str(place)) == 1 and last_done(str(place)) == 1
    version, note = (place / "commits/1").read_text().split("\n")
    wanted = 60_000 if watermark_ms == EVENT_TIME_MAX_MS else watermark_ms
    assert (version, json.loads(note)) == ("v2", {"nextBatchWatermarkMs": wanted, "stateUniqueIds": {}})
    assert (place / "metadata").read_text() != (folder / "metadata").read_text()
    assert str(place) in (place / "state/0/_metadata/v2/0").read_text()
    write(place / "offsets/2", "v1\n{}\n-")  # A batch that its first driver planned.
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    assert checkpoints.fit(FILES, version=7, batch=-1, recorded=b"", resumes=True) == str(place)
    assert {path.name for path in (place / "offsets").iterdir()} == {"0", "1"}


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_that_spark_did_not_note_is_repeated_in_the_copy(tmp_path: Path, batch: int) -> None:
    """Spark refuses state beside a first batch, so the state of such a batch is left out."""
    folder, place = checkpoint(tmp_path / "old" / "2", *range(batch + 1)), tmp_path / "checkpoints" / "j" / "7"
    (folder / f"commits/{batch}").unlink()
    adopt(str(folder), batch, str(place))
    assert (restored_batch(str(place)), last_done(str(place))) == (batch, batch - 1)
    assert (place / f"offsets/{batch}").exists() and (place / "state").exists() == bool(batch)


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """One node for all tests of this module."""
    with jobs_cluster(peers=1, partitions=2) as found:
        yield found


class Stand:
    """A job that only formally runs, its checkpoint, and what its host does about savepoints."""

    def __init__(self, cluster: JobsCluster, folder: Path, *batches: int) -> None:
        self.cluster = cluster
        self.job: Known = cluster.start_job()
        self.name = f"of-{self.job.id}"
        assert cluster.replica.cluster is not None
        self.place = folder / "savepoints" / cluster.replica.cluster.id
        self.folder = checkpoint(folder / "checkpoint", *batches)
        for batch in batches:
            assert cluster.append(commit_batch.Args(self.job.id, self.job.version, batch, b"x", ())) == ["applied"]
        model = Job(id=self.job.id, workflow=FILES.workflow, catalog=FILES.catalog)
        self.source = Source(model, self.job.version, str(self.folder), ["in"])
        self.checkpoints = Checkpoints(str(folder / "checkpoints"), str(self.place.parent))
        self.host = Savepoints(cluster.connect, self.checkpoints, lambda: [self.source])

    def begin(self) -> int:
        """Begin the savepoint, and return its position."""
        assert self.cluster.append(begin_savepoint.Args(self.name, self.job.id)) == ["applied"]
        return begin_savepoint.savepoints(self.cluster.replica)[self.name].position

    def listed(self, client: Client) -> dict[str, dict[str, Any]]:
        """Return the savepoints of the job by name."""
        return {one["name"]: dict(one) for one in client.savepoints(self.job.id)}


def test_a_host_makes_a_savepoint_and_deletes_its_files_when_it_is_deleted(
    cluster: JobsCluster, tmp_path: Path
) -> None:
    """It is complete once the log has it. What a killed host left of it is deleted, what the log cannot know stays."""
    stand = Stand(cluster, tmp_path, 0, 1)
    position = stand.begin()
    half, future = stand.place / f"{stand.name}.{position}.00000000", stand.place / f"later.{1 << 40}.00000000"
    for one in (half, future):
        write(one / "offsets/0", "x")
    with cluster.client() as client:
        assert stand.listed(client)[stand.name]["state"] == "making"
        stand.host.look()
        made = stand.listed(client)[stand.name]
        assert (made["state"], made["batch"]) == ("complete", 1) and names_in(Path(made["place"])) >= {
            "job",
            "commits/1",
        }
        record = begin_savepoint.savepoints(cluster.replica)[stand.name].offsets
        assert record == recorded(made["place"], 1, "", ["in"])
        stand.host.look()
        assert {path.name for path in stand.place.iterdir()} == {Path(made["place"]).name, future.name}
        client.delete_savepoint(stand.name)
        stand.host.look()
        assert list(stand.place.iterdir()) == [future]


def test_a_savepoint_waits_for_the_batch_that_the_log_has_and_spark_has_not_noted(
    cluster: JobsCluster, tmp_path: Path
) -> None:
    """A driver that ends at this moment has committed the batch; the savepoint is made once it is done."""
    stand = Stand(cluster, tmp_path, 0, 1)
    (stand.folder / "commits/1").unlink()
    stand.begin()
    with cluster.client() as client:
        stand.host.look()
        assert stand.listed(client)[stand.name]["state"] == "making" and not stand.place.exists()
        write(stand.folder / "commits/1", "v2\n{}")
        stand.host.look()
        assert stand.listed(client)[stand.name]["batch"] == 1
        client.delete_savepoint(stand.name)


def test_files_are_copied_once_until_the_log_takes_the_report(cluster: JobsCluster, tmp_path: Path) -> None:
    """Here the driver was replaced. The next driver makes a copy of its own, and the first one is deleted."""
    stand = Stand(cluster, tmp_path, 0)
    present = stand.source
    stand.source = evolve(present, version=present.version - 1)
    stand.begin()
    with cluster.client() as client:
        for _ in range(3):
            stand.host.look()
        (refused,) = stand.place.iterdir()
        assert stand.listed(client)[stand.name]["state"] == "making"
        stand.source = present
        stand.host.look()
        made = Path(stand.listed(client)[stand.name]["place"])
        stand.host.look()
        assert list(stand.place.iterdir()) == [made] and made != refused
        client.delete_savepoint(stand.name)


def test_a_savepoint_that_cannot_be_copied_is_dropped_and_leaves_no_files(cluster: JobsCluster, tmp_path: Path) -> None:
    """The name is free again, and a later command succeeds."""
    stand = Stand(cluster, tmp_path, 0)
    schema = stand.folder / "state/0/_stateSchema/default/0_a1"
    schema.rename(tmp_path / "aside")
    stand.begin()
    with cluster.client() as client:
        stand.host.look()
        assert stand.listed(client) == {} and not list(stand.place.iterdir())
        (tmp_path / "aside").rename(schema)
        stand.begin()
        stand.host.look()
        assert stand.listed(client)[stand.name]["state"] == "complete"
        client.delete_savepoint(stand.name)


def test_a_job_begins_with_what_its_savepoint_has(cluster: JobsCluster, tmp_path: Path) -> None:
    """State comes from the files; places too if the log has too few of them. A host that has no files says so."""
    stand = Stand(cluster, tmp_path, 0, 1)
    stand.begin()
    stand.host.look()
    record = begin_savepoint.savepoints(cluster.replica)[stand.name].offsets
    job = Job(id="new", resume=f"savepoint:{stand.name}", workflow=FILES.workflow, catalog=FILES.catalog)
    told = Resumed(f"savepoint:{stand.name}", "completed", 0, record)
    found, resumed = beginning(job, record, told, batch=-1, version=0, connect=cluster.connect)
    assert found == record and resumed is not None and (resumed.job, resumed.batch) == (stand.job.id, 1)
    place = Path(resumed.place)
    assert place.is_dir()
    few = msgpack.packb({**msgpack.unpackb(record), "sources": None})
    assert beginning(job, few, None, batch=-1, version=0, connect=cluster.connect) == (record, None)
    assert beginning(job, record, None, batch=-1, version=0, connect=None) == (record, None)
    assert beginning(job, few, told, batch=3, version=0, connect=None) == (few, told)
    place.rename(tmp_path / "away")
    with pytest.raises(Incomplete, match=f"cannot begin from savepoint {stand.name} on this peer"):
        beginning(job, record, told, batch=-1, version=0, connect=cluster.connect)
    with cluster.client() as client:
        client.delete_savepoint(stand.name)
    with pytest.raises(Incomplete, match="was deleted before job new began"):
        beginning(job, record, told, batch=-1, version=0, connect=cluster.connect)


@pytest.mark.parametrize(
    ("work", "checkpoints", "place"),
    [
        ("/data/spark", None, "/data/spark/savepoints"),
        ("/data/spark", "/data/spark/checkpoints", "/data/spark/savepoints"),
        ("/data/spark/jobs/j", "/data/spark/checkpoints", "/data/spark/savepoints"),
        ("/data/spark", "/checkpoints", "/checkpoints/_savepoints"),
        ("/srv/data/spark", "/srv/checkpoints", "/srv/checkpoints/_savepoints"),
    ],
)
def test_savepoints_are_where_the_jobs_next_peer_finds_them(work: str, checkpoints: str | None, place: str) -> None:
    """A shared place has them, wherever it is; only a peer's own place, which it clears, has them beside it."""
    found = _checkpoints(Asked(work=work, checkpoints=checkpoints))
    assert found.savepoints(Job(workflow=[], catalog=[])) == place


def test_a_program_whose_files_end_with_it_makes_no_savepoint(cluster: JobsCluster, tmp_path: Path) -> None:
    """The savepoint is dropped, and the name is free again."""
    stand = Stand(cluster, tmp_path, 0)
    stand.begin()
    with cluster.client() as client:
        Savepoints(cluster.connect, stand.checkpoints, lambda: [stand.source], lasting=False).look()
        assert stand.listed(client) == {} and not stand.place.exists()
