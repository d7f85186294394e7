"""Inputs and places that need additional packages: the missing one is named before a query starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from attrs import evolve
from pyarrow import fs

from onyxq.errors import Incomplete
from onyxq.jobs.job_check import OUTPUT_FORMATS, check
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.jobs.options import CALL
from onyxq.spark.files.formats import WRITERS
from onyxq.spark.places import check_place, located
from tests.spark.host_world import host_process
from tests.spark.job_world import HERE, lines_job, run, written
from tests.spark.test_frames import drive

pytestmark = pytest.mark.long


def test_kafka_without_its_jars_names_them(spark: Any, tmp_path: Path) -> None:
    """The names are for this version of Spark; nothing was started or created."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
    job = Job(
        workflow=[("in", "out")],
        catalog=[
            Input("in", format="kafka", options=options),
            Output("out", format="json", path=str(tmp_path / "out")),
        ],
    )
    check(job)
    with pytest.raises(Incomplete, match=r"catalog\[0\].format: Spark has no 'kafka' here") as caught:
        run(spark, job, tmp_path)
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert f"--spark-conf file: spark.jars.packages {package}" in caught.value.advice
    assert not list(tmp_path.rglob("metadata"))


def test_formats_of_outputs_are_those_that_can_be_written() -> None:
    """Jobs are checked against them without Spark."""
    assert sorted(WRITERS) == sorted([*OUTPUT_FORMATS, CALL])


def test_a_scheme_that_spark_cannot_open_is_told(spark: Any, tmp_path: Path) -> None:
    """The error names the needed package; paths and Spark's own schemes are accepted."""
    check_place(spark, str(tmp_path), field="checkpoint")
    check_place(spark, tmp_path.as_uri(), field="checkpoint")
    for place, needed in (
        ("s3a://bucket/jobs", "hadoop-aws"),
        ("abfs://c@a.dfs.core.windows.net/jobs", "hadoop-azure"),
        ("gs://bucket/jobs", "gcs-connector"),
        ("s3://bucket/jobs", "s3a://"),
        ("nosuch://bucket/jobs", "Use a path"),
    ):
        scheme = place.partition(":")[0]
        with pytest.raises(Incomplete, match=rf"checkpoint: Spark has no file system for {scheme}://") as caught:
            check_place(spark, place, field="checkpoint")
        assert needed in caught.value.advice


def test_a_function_of_a_dataframe_needs_a_place_that_spark_can_read(spark: Any, tmp_path: Path) -> None:
    """The job fails when it starts; its first batch would be committed, and never reach the function."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")
    options = {"schema": "value string", "rows": "frame"}
    out = Output("out", foreach_batch="builtins:print", path="gs://bucket/rows", options=options)
    job = Job(workflow=[("in", "out")], catalog=[Input("in", format="text", path=str(tmp_path / "in")), out])
    check(job)
    said = drive(spark, job, tmp_path)
    assert (said["event"], said["restart"]) == ("failed", False), said
    assert said["error"].startswith("path of output out: Spark has no file system for gs:// here"), said


def test_places_are_those_of_arrow(tmp_path: Path) -> None:
    """Schemes have Arrow's names; an unknown one is reported."""
    (tmp_path / "a").write_bytes(b"x")
    system, path = located(f"{tmp_path.as_uri()}/")
    assert system.get_file_info(f"{path}/a").type == fs.FileType.File
    system, path = located("s3a://bucket/jobs/?region=eu-central-1")
    assert (system.type_name, path) == ("s3", "bucket/jobs")
    with pytest.raises(Incomplete, match="nosuch://bucket cannot be reached"):
        located("nosuch://bucket")


def test_a_checkpoint_that_spark_cannot_open_fails_the_job_at_once(java: None, tmp_path: Path) -> None:
    """It is not retried; a checkpoint with a URI works like a path."""
    job = lines_job(tmp_path, Function("f", f"{HERE}:words"))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    (tmp_path / "host").mkdir()
    with host_process(tmp_path / "host") as host:
        host.event("up")
        host.start(evolve(job, id="far", checkpoint="s3a://bucket/jobs"))
        failed = host.event("failed", "ready", "completed", job="far")
        assert failed["event"] == "failed" and failed["restart"] is False
        assert "checkpoint: Spark has no file system for s3a:// here" in failed["error"]
        assert "org.apache.hadoop:hadoop-aws" in failed["error"]
        host.start(evolve(job, id="near", checkpoint=(tmp_path / "kept").as_uri()))
        assert host.event("completed", "failed", job="near")["event"] == "completed"
    assert sorted(one["word"] for one in written(tmp_path / "out")) == ["a", "b"]
    assert list((tmp_path / "kept" / "near").rglob("metadata"))
