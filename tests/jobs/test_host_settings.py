"""Settings of the Spark process of one job: what a job may have, and what its host starts with."""

from __future__ import annotations

from typing import Any

import pytest

from onyxq import HostSettings
from onyxq.errors import BadRequest
from onyxq.jobs import encoding
from onyxq.jobs.host_settings import code_in, with_settings
from onyxq.jobs.job_check import check, problems
from tests.jobs.test_checking import job


def found(**given: Any) -> list[tuple[str, str]]:
    """Return the problems of a job with these settings."""
    return list(problems(job(own_host=True, host=HostSettings(**given))))


def of_setting(name: str, value: Any = "1") -> str:
    """Return why a job may not have a setting of Spark."""
    ((field, what),) = found(conf={name: value})
    assert field == f"host.conf.{name}"
    return what


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"driver_memory": "2 GB"}, "host.driver_memory", "a size of memory such as 512m or 2g, or None, not '2 GB'"),
        ({"executor_memory": "0g"}, "host.executor_memory", "a size of memory"),
        ({"executor_cores": 0}, "host.executor_cores", "an integer of 1 to 1024"),
        ({"packages": ["org.apache.spark:spark-avro"]}, "host.packages[0]", "group:artifact:version, not 'org"),
        ({"packages": "a:b:1"}, "host.packages", "a list"),
        ({"jars": ["a.jar,b.jar"]}, "host.jars[0]", "without a comma"),
        ({"py_files": ["a.whl"]}, "host.py_files[0]", ".py, .zip or .egg"),
        ({"environment": "/envs/shop"}, "host.environment", "the path of a .tar.gz"),
        ({"conf": ["spark.task.maxFailures"]}, "host.conf", "a map from settings of Spark"),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(given: dict[str, Any], field: str, says: str) -> None:
    """The error says what the field takes."""
    ((place, what),) = found(**given)
    assert place == field and says in what


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("spark.sql.streaming.minBatchesToRetain", "is set by OnyxQ: commits"),
        ("spark.sql.streaming.checkpointLocation", "is set by OnyxQ: commits"),
        ("spark.master", "is set by OnyxQ"),
        ("spark.executorEnv.PYTHONPATH", "is set by OnyxQ"),
        ("spark.sql.shuffle.partitions", "use key_groups of the job"),
        ("spark.cores.max", "use max_slots of the job"),
        ("spark.executor.memory", "has a field of its own: executor_memory"),
        ("spark.executor.memoryOverhed", "did you mean spark.executor.memoryOverhead"),
        ("spark.speculation", "is not a setting that a job may have"),
        ("hadoop.fs.s3a.impl", "their names begin with spark."),
    ],
)
def test_a_setting_that_a_job_may_not_have_is_refused_by_name(name: str, says: str) -> None:
    """OnyxQ's own settings, unknown ones, and those that have a field."""
    assert says in of_setting(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.hadoop.security.credential.provider.path",
        "spark.kubernetes.executor.secrets.store",
        "spark.yarn.keytab",
        "spark.executorEnv.DB_PASSWORD",
    ],
)
def test_a_secret_or_its_address_is_refused_and_not_shown(name: str) -> None:
    """Every reader of the job would see it; the message has its name only."""
    wrong = job(own_host=True, host=HostSettings(conf={name: "hush"}))
    with pytest.raises(BadRequest, match="--spark-conf") as caught:
        check(wrong)
    assert caught.value.field == f"host.conf.{name}" and "hush" not in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize(
    "given",
    [
        {"jars": ["https://me:hush@repo/x.jar"]},
        {"conf": {"spark.jars.repositories": "https://me:hush@repo"}},
        {"conf": {"spark.hadoop.fs.defaultFS": ["hush"]}},
    ],
)
def test_no_message_shows_a_value_that_may_have_a_password(given: dict[str, Any]) -> None:
    """An address with a password is refused as well."""
    ((_, what),) = found(**given)
    assert "hush" not in what


def test_settings_are_for_a_job_with_a_process_of_its_own() -> None:
    """Jobs that share a host share its settings."""
    assert list(problems(job(host=HostSettings(executor_cores=2)))) == [
        ("host", "is for a job with a process of its own: set own_host to True")
    ]
    assert [field for field, _ in problems(job(host={"executor_cores": 2}))] == ["host"]


def test_an_unknown_field_in_json_is_refused_by_name() -> None:
    """It has the nearest name that exists."""
    said = {**encoding.to_map(job(own_host=True)), "host": {"executer_memory": "2g"}}
    with pytest.raises(BadRequest, match="did you mean executor_memory") as caught:
        encoding.from_map(said)
    assert caught.value.field == "host.executer_memory"


def test_a_host_starts_with_the_settings_of_its_peer_and_over_them_those_of_the_job() -> None:
    """Jars, packages and Python files of both are used."""
    given = HostSettings(
        driver_memory="2g",
        driver_cores=2,
        executor_memory="4g",
        executor_cores=3,
        packages=["org.apache.spark:spark-avro_2.13:4.3.0"],
        py_files=["/lib/a.py", "/lib/b.zip"],
        environment="/envs/shop.tar.gz",
        conf={"spark.task.maxFailures": "9"},
    )
    assert not found(**{name: getattr(given, name) for name in ("packages", "py_files", "environment", "conf")})
    peer = {"spark.driver.memory": "1g", "spark.jars.packages": "a:kafka:1", "spark.ui.enabled": "true"}
    assert with_settings(peer, given) == {
        "spark.driver.memory": "2g",
        "spark.driver.cores": "2",
        "spark.executor.memory": "4g",
        "spark.executor.cores": "3",
        "spark.jars.packages": "a:kafka:1,org.apache.spark:spark-avro_2.13:4.3.0",
        "spark.submit.pyFiles": "/lib/a.py,/lib/b.zip",
        "spark.archives": "/envs/shop.tar.gz#environment",
        "spark.task.maxFailures": "9",
        "spark.ui.enabled": "true",
    }


def test_settings_that_bring_code_are_known() -> None:
    """With tokens, they need the same permission as pickled functions."""
    plain = HostSettings(driver_memory="2g", executor_cores=2, conf={"spark.task.maxFailures": "9"})
    assert list(code_in(plain)) == []
    conf = {"spark.kubernetes.container.image": "x", "spark.executor.extraJavaOptions": "-javaagent:x"}
    bringing = HostSettings(packages=["a:b:1"], jars=["a", "b"], py_files=["c.py"], environment="d.tgz", conf=conf)
    assert list(code_in(bringing)) == [
        "packages[0]",
        "jars[0]",
        "jars[1]",
        "py_files[0]",
        "environment",
        *(f"conf.{name}" for name in conf),
    ]
