"""Secrets among Spark's settings are in no process argument, because every user of the machine can read those."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onyxq.spark.session import PROPERTIES, descendants, properties

pytestmark = pytest.mark.long


SECRET, OTHER = "hush=hush: \\ ! # hush", "grüße 🙂"
PROGRAM = """
import json, sys
from pathlib import Path
from onyxq.spark.session import Settings, kill_machine, machine_of, open_session
work, secret, other = json.loads(sys.stdin.readline())
conf = {"spark.hadoop.fs.s3a.secret.key": secret, "spark.onyxq.other": other, "spark.driver.memory": "600m"}
session = open_session(Settings(work=Path(work), slots=1, quick_start=True, conf=conf))
found = session.sparkContext.getConf()
print(json.dumps([found.get(name) for name in [*conf, "spark.app.name"]]), flush=True)
sys.stdin.readline()
kill_machine(machine_of(session))
"""


def test_no_setting_is_an_argument_of_the_virtual_machine(tmp_path: Path) -> None:
    """It reads them from a private file, which is deleted once it is up, with unchanged values."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([str(tmp_path), SECRET, OTHER]) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == [SECRET, OTHER, "600m", "onyxq"]
            started = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in [process.pid, *descendants(process.pid)]]
            assert any(b"java" in one for one in started)
            assert not any(b"hush" in one for one in started)
            assert not (tmp_path / PROPERTIES).exists()
            process.stdin.write("\n")
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


def test_properties_are_one_line_each() -> None:
    """This holds for any value: a second line would be another setting."""
    assert properties({"spark.a": "1\nspark.b=2", "spark.c": "x y"}) == (
        b"spark.a=1\\u000aspark.b\\u003d2\nspark.c=x\\u0020y\n"
    )
