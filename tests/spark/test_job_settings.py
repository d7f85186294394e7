"""Settings of Spark that a job may have, against those that Spark has and those that a host sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onyxq.jobs.host_settings import KNOWN, LISTS, SINGLE, HostSettings, problems
from onyxq.spark import java
from onyxq.spark.home import Home
from onyxq.spark.session import Settings, configuration

DECLARING = ("Kryo", "Network", "Python", "package", "R", "Streaming", "Tests", "UI")
"""Objects of Spark that declare settings when they are first used."""


@pytest.mark.long
def test_spark_has_every_setting_that_a_job_may_have(spark: Any) -> None:
    """A misspelt one would be accepted, and have no effect."""
    root = java.packages(spark)
    for name in DECLARING:
        root.java.lang.Class.forName(f"org.apache.spark.internal.config.{name}$")
    known = root.org.apache.spark.internal.config.ConfigEntry
    names = {*KNOWN, *SINGLE.values(), *LISTS.values()}
    assert [name for name in sorted(names) if known.findEntry(name) is None] == []


@pytest.mark.parametrize("master", ["local", "yarn"])
def test_a_job_cannot_change_what_its_host_sets(master: str) -> None:
    """Sizes have fields; everything else is refused."""
    conf = {"spark.archives": "/envs/shop.tar.gz#environment"}
    ours = configuration(Settings(Path(), master=master, conf=conf), Home(Path(), archive=None))
    refused = {field.removeprefix("conf.") for field, _ in problems(HostSettings(conf=ours))}
    assert refused == set(ours)
