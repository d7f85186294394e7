"""The Spark process of a peer: orders, events, and its complete end."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from onyxq.jobs.encoding import encode
from onyxq.jobs.host_settings import HostSettings, with_settings
from onyxq.jobs.model import Function, Job, Lifecycle
from tests.spark.host_world import HostProcess, alive, brought, gone, host_process, on_small_disk
from tests.spark.job_world import HERE, lines_job, written

FORKING = "-m\0onyxq.spark.daemon"
"""Part of the command of the process that forks the workers of jobs."""

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File in which lifecycles record their calls."""
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def host(java: None, tmp_path_factory: pytest.TempPathFactory, notes: Path) -> Iterator[HostProcess]:
    """One host for the tests that do not end it."""
    work = tmp_path_factory.mktemp("host")
    with host_process(work, environment={"SPARK_TEST_NOTES": str(notes)}) as found:
        found.event("up")
        yield found


def job_of(folder: Path, fn: str, name: str, text: str = "a b\nc\n", **params: object) -> Job:
    """A job of one function over one file."""
    job = evolve(lines_job(folder, Function("f", f"{HERE}:{fn}", params)), id=name)
    (folder / "in" / "a.txt").write_text(text)
    return job


def test_a_job_runs_to_its_end_and_tells_of_it(host: HostProcess, tmp_path: Path) -> None:
    """It reports ready, progress and completed, each with job and version."""
    host.start(job_of(tmp_path, "words", "whole"), version=7)
    assert host.event("ready", "failed", job="whole")["version"] == 7
    progress = host.event("progress", "failed", job="whole")["progress"]
    assert (progress["batch"], progress["rows"], progress["state_rows"]) == (0, 2, 0)
    assert list(progress["inputs"].values()) == [2]
    assert progress["duration_ms"] > 0 and progress["at_ms"] > 1_700_000_000_000
    assert host.event("completed", "failed", job="whole") == {"event": "completed", "job": "whole", "version": 7}
    assert sorted(one["word"] for one in written(tmp_path / "out")) == ["a", "b", "c"]
    assert not (tmp_path / "out" / "_onyxq").exists()


def test_lifecycles_are_called_around_job_and_batch(host: HostProcess, tmp_path: Path, notes: Path) -> None:
    """Workers call them for the task that they name."""
    note = f"{HERE}:note"
    around = Lifecycle("f", before_job=note, after_job=note, before_batch=note, after_batch=note)
    host.start(evolve(job_of(tmp_path, "words", "noted"), lifecycles=(around,)))
    assert host.event("completed", "failed", job="noted")["event"] == "completed"
    assert (notes / "noted").read_text() == "f -\nf 0\nf 0\nf -\n"


def test_a_job_runs_in_a_pool_of_its_own(host: HostProcess, tmp_path: Path) -> None:
    """So the scheduler can weigh it against others."""
    host.start(job_of(tmp_path, "pool", "pooled"))
    assert host.event("completed", "failed", job="pooled")["event"] == "completed"
    assert [one["pool"] for one in written(tmp_path / "out")] == ["job-pooled", "job-pooled"]


def test_a_function_that_fails_is_told_with_its_segment(host: HostProcess, tmp_path: Path) -> None:
    """The report says that a retry does not help, unless a lifecycle says otherwise."""
    job = job_of(tmp_path, "fail", "failing", "fine\nfail\n")
    host.start(job)
    failed = host.event("failed", "completed", job="failing")
    assert (failed["event"], failed["task"], failed["segment"]) == ("failed", "f", "{'value': 'fail'}")
    assert failed["error"].startswith("task f: RuntimeError: told to fail")
    assert "told to fail" in failed["traceback"]
    assert failed["restart"] is False
    host.start(evolve(job, id="trying", lifecycles=(Lifecycle(on_exception=f"{HERE}:restart"),)))
    assert host.event("failed", job="trying")["restart"] is True


def test_a_module_that_is_not_there_is_named(host: HostProcess, tmp_path: Path) -> None:
    """The error has the job's field and what to do."""
    job = job_of(tmp_path, "words", "lost")
    host.start(evolve(job, catalog=(job.catalog[0], Function("f", "no_such_module:fn"), job.catalog[2])))
    failed = host.event("failed", "completed", job="lost")
    assert "catalog[1].fn: no module named 'no_such_module'" in failed["error"]
    assert (failed["task"], failed["restart"]) == ("f", False)


def test_a_job_is_stopped_while_its_function_sleeps(host: HostProcess, tmp_path: Path) -> None:
    """Another job continues; an order for another version changes nothing."""
    host.start(job_of(tmp_path, "hold", "held", until=str(tmp_path / "never")), version=3)
    host.event("ready", job="held")
    host.order("stop", "held", 2)
    other = tmp_path / "other"
    other.mkdir()
    host.start(job_of(other, "words", "beside"))
    assert host.event("completed", "failed", job="beside")["event"] == "completed"
    host.order("slots", "held", 3, slots=2)
    host.order("stop", "held", 3)
    assert host.event("stopped", "failed", job="held") == {"event": "stopped", "job": "held", "version": 3}
    assert written(tmp_path / "out") == []


def test_a_full_disk_of_the_checkpoint_is_named_and_the_job_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """A retry may help; the incomplete files of the first attempt do not disturb it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with host_process(tmp_path, inside=on_small_disk(disk, "512k"), checkpoints=str(disk)) as host:
        host.event("up")
        host.start(job_of(tmp_path, "words", "whole"))
        failed = host.event("failed", "completed", job="whole")
        assert failed["error"].startswith(f"No space left on device: its checkpoint ({disk}) has 0 KiB left")
        assert failed["restart"] is True
        (Path(f"/proc/{host.process.pid}/root{disk}") / "full").unlink()
        host.start(job_of(tmp_path, "words", "whole"))
        assert host.event("failed", "completed", job="whole")["event"] == "completed"
        assert sorted(one["word"] for one in written(tmp_path / "out")) == ["a", "b", "c"]


def test_the_checkpoint_of_a_job_that_has_ended_is_deleted_where_it_is_told_to(tmp_path: Path) -> None:
    """All its versions are deleted, and nothing else; a failed deletion does not end the host.

    A host whose virtual machine hangs stops its sign of life.
    """
    kept = tmp_path / "kept"
    with host_process(tmp_path, checkpoints=str(kept), alive_s=0.2) as host:
        host.event("up")
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            job = job_of(folder, "words", name)
            host.start(job)
            assert host.event("completed", "failed", job=name)["event"] == "completed"
        body = base64.b64encode(encode(job)).decode()
        host.order("forget", "other", 1, body=body)
        host.event("forgotten", job="other")
        host.order("forget", "other", 1, body=body)
        host.event("forgotten", job="other")
        assert [path.name for path in kept.iterdir()] == ["one"]
        host.event("alive")
        (machine,) = _named(host.family(), "/java\0")
        os.kill(machine, signal.SIGSTOP)
        assert host.quiet(5.0)
        os.kill(machine, signal.SIGCONT)
        host.event("alive")


def test_a_host_of_a_job_with_settings_has_them(tmp_path: Path) -> None:
    """Sizes are the virtual machine's; workers run in the job's Python environment, and import its Python files."""
    given = HostSettings(
        driver_memory="600m", driver_cores=1, conf={"spark.task.maxFailures": "7"}, **brought(tmp_path)
    )
    job = lines_job(tmp_path, Function("f", f"{HERE}:words"), Function("g", "brought_words:packed"))
    (tmp_path / "in" / "a.txt").write_text("a b\nc\n")
    with host_process(tmp_path, conf=with_settings({}, given)) as host:
        host.event("up")
        (machine,) = _named(host.family(), "/java\0")
        assert {"-Xmx600m", "-XX:ActiveProcessorCount=1"} <= set(_command(machine).split("\0"))
        host.start(job)
        found = host.event("completed", "failed")
        assert found["event"] == "completed", found
    assert sorted((one["word"], one["packed"]) for one in written(tmp_path / "out")) == [
        ("a", "yes"),
        ("b", "yes"),
        ("c", "yes"),
    ]


def test_an_environment_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The host ends at once, and says which archive and why."""
    conf = with_settings({}, HostSettings(environment=str(tmp_path / "lost.tar.gz")))
    with host_process(tmp_path, conf=conf) as host:
        assert host.process.wait(60) == 1
    assert f"host.environment {tmp_path}/lost.tar.gz cannot be unpacked" in (tmp_path / "host.log").read_text()


def test_the_end_of_stdin_ends_everything(tmp_path: Path) -> None:
    """The virtual machine, Python's daemon in its own group, and a worker inside a user's function end at once."""
    with host_process(tmp_path) as host:
        host.event("up")
        host.start(job_of(tmp_path, "hold", "held", until=str(tmp_path / "never")))
        host.event("ready", job="held")
        while not _daemons(host.family()):
            assert host.process.poll() is None
        family = host.family()
        assert host.close() == 0
        assert gone(family, 2.0), [pid for pid in family if alive(pid)]


def test_a_host_that_is_to_be_warm_has_all_processes_of_a_job_before_it_is_up(tmp_path: Path) -> None:
    """The forking process has loaded the modules; a later job starts no other such process."""
    with host_process(tmp_path, warm=True) as host:
        host.event("up")
        forking = [pid for pid in _daemons(host.family()) if _parent(pid) not in _daemons(host.family())]
        assert len(_named(forking, FORKING)) == 1
        assert {"create_data_source", "plan_data_source_read", "python_streaming_sink_runner"} <= {
            word for pid in forking for word in _command(pid).replace("\0", ".").split(".")
        }
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("warm-")] == []
        host.start(job_of(tmp_path, "words", "quick"))
        assert host.event("completed", "failed", job="quick")["event"] == "completed"
        again = [pid for pid in _daemons(host.family()) if _parent(pid) not in _daemons(host.family())]
        assert sorted(again) == sorted(forking)


def test_the_death_of_the_virtual_machine_is_told_and_ends_the_host(tmp_path: Path) -> None:
    """Its exit code is 1, so the peer starts another host."""
    with host_process(tmp_path) as host:
        host.event("up")
        family = host.family()
        os.kill(_named(family, "java")[0], signal.SIGKILL)
        assert "ended with code -9" in host.event("down")["error"]
        assert host.process.wait(30) == 1
        assert gone(family, 2.0)


def test_nothing_outlives_a_host_that_is_killed(tmp_path: Path) -> None:
    """Its virtual machine sees the end of its stdin, and the workers that of theirs."""
    with host_process(tmp_path) as host:
        host.event("up")
        host.start(job_of(tmp_path, "words", "whole"))
        host.event("completed", "failed", job="whole")
        family = host.family()
        host.process.kill()
        assert gone(family, 30.0), [pid for pid in family if alive(pid)]


def test_a_machine_without_java_is_told_what_to_install(tmp_path: Path) -> None:
    """On stderr, with exit code 1."""
    with host_process(tmp_path, environment={"PATH": str(tmp_path), "JAVA_HOME": ""}) as host:
        assert host.process.wait(60) == 1
    assert "needs Java" in (tmp_path / "host.log").read_text()


def _named(pids: list[int], word: str) -> list[int]:
    return [pid for pid in pids if word in _command(pid)]


def _daemons(pids: list[int]) -> list[int]:
    return [*_named(pids, "-m\0pyspark.daemon"), *_named(pids, FORKING)]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
