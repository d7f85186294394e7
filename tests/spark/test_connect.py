"""Spark Connect: what needs Spark's virtual machine says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from onyxq.errors import BadRequest
from onyxq.spark.analysis.tables import session_for
from onyxq.spark.session import REMOTE, Settings, open_session


@pytest.mark.parametrize("name", REMOTE)
def test_a_host_does_not_start_over_spark_connect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable that asks for it, and what still works."""
    monkeypatch.setenv(name, "sc://127.0.0.1:15002")
    with pytest.raises(BadRequest, match=f"{name} is set: Spark Connect gives no access") as caught:
        open_session(Settings(work=tmp_path))
    assert "format onyxq" in caught.value.advice


def test_a_check_of_archives_refuses_a_session_of_spark_connect(tmp_path: Path) -> None:
    """Such sessions are recognised by their module, without the packages that Spark Connect needs."""
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(BadRequest, match=r"Spark Connect gives no access to Spark's virtual machine \(py4j\)"):
        session_for(remote, [str(tmp_path)])
