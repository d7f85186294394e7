"""The same jobs on a real Spark cluster: a standalone master and two workers; a worker and the master are killed."""

from __future__ import annotations

import os
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.jobs.host_settings import HostSettings, with_settings
from onyxq.jobs.model import Function, Input
from tests.spark.host_world import PATIENCE_S, ROOT, brought, host_process
from tests.spark.job_world import HERE, lines_job, written
from tests.spark.standalone_world import Standalone, standalone

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]


@pytest.fixture
def cluster(java: None, tmp_path: Path) -> Iterator[Standalone]:
    """A master and its two workers of one core each."""
    with standalone(tmp_path) as found:
        yield found


def test_a_job_goes_on_when_a_worker_of_the_cluster_dies(cluster: Standalone, tmp_path: Path) -> None:
    """Only the master's name differs; unfinished work of the dead worker is done by the other.

    Executors have the sizes, jar, Python file and Python environment that the job brings.
    """
    until = tmp_path / "go"
    held = Function("hold", f"{HERE}:hold_first", {"started": str(tmp_path / "started"), "until": str(until)})
    job = lines_job(tmp_path, held, Function("where", f"{HERE}:where"), Function("packed", "brought_words:packed"))
    job = evolve(job, key_groups=4)
    for number in range(4):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
    work = tmp_path / "host"
    work.mkdir()
    jar = tmp_path / "spice.jar"
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("spice.txt", "salt")
    sizes = {"driver_memory": "600m", "executor_memory": "512m", "executor_cores": 1}
    given = HostSettings(**sizes, jars=[str(jar)], conf={"spark.executorEnv.SHOP": "7"}, **brought(tmp_path))
    with host_process(work, master=cluster.url, conf=with_settings({}, given)) as host:
        host.event("up")
        host.start(job)
        host.event("ready", "failed")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline, (work / "host.log").read_text()[-2_000:]
            time.sleep(0.05)
        holder = int((tmp_path / "started").read_text())
        executors = cluster.executors()
        next(worker for worker in cluster.workers if holder in worker.family()).kill()
        until.touch()
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
    assert sorted(one["value"] for one in written(tmp_path / "out")) == ["0", "1", "2", "3"]
    assert all(one["executor"] and one["packed"] == "yes" for one in written(tmp_path / "out"))
    assert executors and all({b"-Xmx512M", b"--cores", b"1"} <= set(one.split(b"\0")) for one in executors)
    assert list(tmp_path.glob("worker*/app-*/*/spice.jar")), "executors got the jar"


FILES = 5
"""Files of the web log; a batch reads one."""
EXAMPLES = ROOT / "examples" / "jobs"


def test_a_web_log_is_exact_although_a_worker_and_the_master_die(
    cluster: Standalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example's job with frames and SQL continues; a new master takes over what the dead one ran."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import running
    import web_log

    running.write_json(tmp_path / "users/1.json", web_log.USERS)
    share = -(-len(web_log.LOG) // FILES)
    for number in range(FILES):
        file = tmp_path / f"log/{number}.json"
        running.write_json(file, web_log.LOG[number * share : (number + 1) * share])
        os.utime(file, (1_000_000 + number, 1_000_000 + number))
    job = web_log.web_log(tmp_path)
    catalog = [
        evolve(task, options={"maxFilesPerTrigger": "1"}) if isinstance(task, Input) and not task.static else task
        for task in job.catalog
    ]
    job = evolve(job, catalog=catalog, key_groups=4)
    work = tmp_path / "host"
    work.mkdir()
    asked = {"master": cluster.url, "conf": {"spark.executor.memory": "512m"}, "modules": [str(ROOT), str(EXAMPLES)]}
    with host_process(work, **asked) as host:
        host.event("up")
        host.start(job)
        assert host.event("progress", "failed")["event"] == "progress"
        cluster.workers[0].kill()
        assert host.event("progress", "failed")["event"] == "progress"
        cluster.restart_master()
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
        batches = [one["progress"]["batch"] for one in host.seen if one["event"] == "progress"]
    assert max(batches) >= FILES - 1, "work was left when they died"
    check_web_log(tmp_path, web_log.LOG, {one["user"]: one["land"] for one in web_log.USERS})


def check_web_log(folder: Path, log: list[dict[str, Any]], lands: dict[int, str]) -> None:
    """Compare the job's output with a count by hand."""
    hours: Counter[tuple[datetime, str]] = Counter()
    times: dict[int, list[datetime]] = {}
    for row in log:
        at = datetime.fromisoformat(row["at"])
        hours[at.replace(minute=0, second=0), lands[row["user"]]] += row["bytes"]
        times.setdefault(row["user"], []).append(at)
    visits: Counter[tuple[int, datetime]] = Counter()
    for user, all_of in times.items():
        began = before = all_of[0]
        for at in all_of:
            began, before = (began if at - before < timedelta(minutes=30) else at), at
            visits[user, began] += 1
    found = written(folder / "visits", "parquet")
    assert Counter((one["user"], one["start"].replace(tzinfo=UTC), one["count"]) for one in found) == Counter(
        (*key, count) for key, count in visits.items()
    )
    found = written(folder / "hours", "parquet")
    assert Counter((one["hour"].replace(tzinfo=UTC), one["land"], one["bytes"]) for one in found) == Counter(
        (*key, size) for key, size in hours.items()
    )
