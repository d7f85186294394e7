"""Jobs from a user's view, on a real cluster: Python, command line and HTTP.

Spark is in memory here; the first word of a job's id decides what the job does (`acts`).
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import attrs
import msgpack
import pytest

from onyxq import AsyncClient, Client, Function, Input, Job, Output, api
from onyxq.errors import BadRequest, Conflict, JobConflict, NotFound, TimedOut, TooLarge
from onyxq.interfaces.cli.main import run
from onyxq.jobs import letters
from onyxq.node.jobs.hosts import Message
from onyxq.spark.queues.options import QueueOutput
from onyxq.spark.queues.shares import Share
from tests.interfaces.live_world import Live, running
from tests.jobs.fake_host import FakeHosts, FakeLink, obedient

WAIT_S = 20.0
_serial = count(1)


def acts(link: FakeLink, order: Message) -> None:
    """Complete, fail, or run on, as the job's id says; complete once all inputs are sealed."""
    obedient(link, order)
    job, version = order.get("job", ""), order.get("version", 0)
    if order["do"] == "start" and job.startswith("completes"):
        link.say("progress", job, version, progress={"batch": 2, "rows": 7, "rows_per_s": 3.5, "inputs": {"in": 7}})
        link.say("completed", job, version)
    elif order["do"] == "start" and job.startswith("fails"):
        link.say("failed", job, version, error="ZeroDivisionError: by zero", task="work", segment="0", restart=False)
    elif order["do"] == "start" and job.startswith("runs"):
        link.say("progress", job, version, progress={"batch": 4, "rows": 9})
    elif order["do"] == "seal":
        link.say("completed", job, version)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """Run one node that hosts Spark in memory."""
    with running(http=True, slots=64, launch_host=FakeHosts(acts).launch) as cluster:
        found = Live(cluster)
        yield found
        found.close()


def job_of(kind: str, **more: Any) -> Job:
    """Return a job with an id that no other test uses."""
    return Job(
        **{
            "id": f"{kind}-{next(_serial)}",
            "workflow": [("in", "work"), ("work", "out")],
            "catalog": [Input("in", queue="a"), Function("work", "os.path:basename"), Output("out", queue="b")],
            "max_slots": 1,
            **more,
        }
    )


def test_a_job_is_submitted_and_waited_for(live: Live) -> None:
    """This uses the functions for scripts, each with a connection of its own."""
    job = job_of("completes")
    assert api.submit(job, live.address) == job.id
    outcome = api.wait(job.id, live.address, timeout=WAIT_S)
    assert (outcome.id, outcome.state, outcome.completed, outcome.error) == (job.id, "completed", True, "")
    assert outcome.ended_ms is not None and outcome.ended_ms >= outcome.submitted_ms > 0
    assert job.id in {one["id"] for one in api.jobs(live.address, state="completed")}
    assert api.job(job.id, live.address)["job"]["workflow"] == [["in", "work"], ["work", "out"]]


def test_a_script_can_replace_a_job(live: Live) -> None:
    """The function for scripts has the option of the clients, which is for a job that resumes another."""
    with pytest.raises(BadRequest, match="replace is for a job that resumes another"):
        api.submit(job_of("alone"), live.address, replace=True)


def test_a_failed_job_tells_what_it_failed_with(client: Client) -> None:
    """The error includes the task and the segment."""
    job = job_of("fails")
    client.submit_job(job)
    outcome = client.wait_job(job.id, 20_000)
    assert (outcome.state, outcome.completed) == ("failed", False)
    assert outcome.error == "ZeroDivisionError: by zero\ntask: work\nsegment: 0"


def test_a_job_runs_until_its_input_is_sealed(live: Live, client: Client) -> None:
    """An earlier wait has a limit; sealing again and an unknown input are reported."""
    job = job_of("runs")
    client.submit_job(job)
    with pytest.raises(TimedOut, match="running after 50 ms"):
        client.wait_job(job.id, 50)
    with pytest.raises(BadRequest, match="has no input 'inn' that can be sealed; did you mean in") as error:
        api.seal(job.id, "inn", live.address)
    assert error.value.field == "input"
    assert api.seal(job.id, "in", live.address)["sealed"] == ["in"]
    assert client.wait_job(job.id, 20_000).completed
    with pytest.raises(Conflict, match="has ended already: completed"):
        client.seal_job(job.id, "in")


def test_killing_a_job_ends_it_and_can_be_repeated(live: Live, client: Client) -> None:
    """A job that ended otherwise cannot be killed."""
    job, other = job_of("runs"), job_of("completes")
    client.submit_job(job)
    assert api.kill(job.id, live.address)["state"] == "killed"
    assert client.kill_job(job.id)["state"] == "killed"
    assert client.wait_job(job.id, 0).state == "killed"
    client.submit_job(other)
    client.wait_job(other.id, 20_000)
    with pytest.raises(Conflict, match="has completed already"):
        client.kill_job(other.id)


def test_unknown_jobs_are_not_found(client: Client) -> None:
    """This holds for every request."""
    asked: list[Callable[[], Any]] = [
        lambda: client.job("nobody"),
        lambda: client.wait_job("nobody"),
        lambda: client.kill_job("nobody"),
        lambda: client.seal_job("nobody", "in"),
    ]
    for ask in asked:
        with pytest.raises(NotFound) as error:
            ask()
        assert error.value.field == "id"


def test_a_wrong_job_is_refused_by_the_client(client: Client) -> None:
    """The error has its key, what was expected and the most similar name; nothing is submitted."""
    job = job_of("runs", workflow=[("in", "wrok"), ("work", "out")])
    with pytest.raises(BadRequest, match="work") as error:
        client.submit_job(job)
    assert error.value.field == "workflow[0]"
    missing = job_of("runs")
    bad = attrs.evolve(missing, catalog=(missing.catalog[0], Function("work", "nowhere.at.all:f"), missing.catalog[2]))
    with pytest.raises(BadRequest, match="nowhere") as error:
        client.submit_job(bad)
    assert error.value.field == "catalog[1].fn"
    with pytest.raises(TooLarge):
        client.submit_job(job_of("runs", metadata={"x": "x" * 200_000}))
    with pytest.raises(NotFound):
        client.job(job.id)
    assert client.submit_job(bad, importable=False) == bad.id
    client.kill_job(bad.id)


def test_the_same_job_again_is_the_same_job(client: Client) -> None:
    """This holds while it runs, after its end, and after a log collection; another job's submission is a conflict."""
    job = job_of("completes")
    other = attrs.evolve(job, metadata={"x": 1})
    assert client.submit_job(job) == client.submit_job(job) == job.id
    ended = client.wait_job(job.id, 20_000)
    assert client.submit_job(job) == job.id and client.wait_job(job.id, 0) == ended
    with pytest.raises(JobConflict) as error:
        client.submit_job(other)
    assert (error.value.field, error.value.status, error.value.exit_code) == ("id", 409, 4)
    client.gc(timeout_ms=60_000)
    assert client.job(job.id)["job"] is None
    assert client.submit_job(job) == job.id
    with pytest.raises(JobConflict):
        client.submit_job(other)
    assert client.wait_job(job.id, 0) == ended


def test_an_outcome_is_forgotten_when_the_job_asked_for_no_longer(client: Client) -> None:
    """The next log collection forgets it; then the id is free."""
    job = job_of("completes")
    client.submit_job(job, keep_ms=0)
    client.wait_job(job.id, 20_000)
    client.gc(timeout_ms=60_000)
    client.gc(timeout_ms=60_000)
    with pytest.raises(NotFound):
        client.wait_job(job.id)
    client.submit_job(attrs.evolve(job, metadata={"x": 1}))
    assert client.wait_job(job.id, 20_000).completed


def test_two_submissions_at_once_are_one_job(live: Live) -> None:
    """Many clients submit it together; of two different jobs with one id, one is refused."""
    job = job_of("runs")
    variants = [job, attrs.evolve(job, metadata={"x": 1})]

    def submit(number: int) -> str:
        try:
            return api.submit(variants[number % 2], live.address)
        except JobConflict:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(submit, range(8)))
    assert sorted(found) == ["refused"] * 4 + [job.id] * 4 or sorted(found) == [job.id] * 4 + ["refused"] * 4
    assert len({found[0], found[1]}) == 2
    assert len([one for one in api.jobs(live.address) if one["id"] == job.id]) == 1
    api.kill(job.id, live.address)


def test_a_job_that_no_peer_can_run_waits_and_says_why(client: Client) -> None:
    """Examples are too many slots, and a tag that no peer has."""
    job, tagged = job_of("runs", min_slots=65, max_slots=65), job_of("runs", tags=["gpu"])
    for one, why in ((job, "65"), (tagged, "gpu")):
        client.submit_job(one)
        found = client.job(one.id)
        assert found["state"] == "waiting" and why in found["why"], found
        with pytest.raises(TimedOut, match=why):
            client.wait_job(one.id, 10)
        assert client.kill_job(one.id)["state"] == "killed"


def test_waiting_ends_with_the_job_for_everybody_who_waits(client: Client) -> None:
    """This holds for any number of waiting clients."""
    job = job_of("runs")
    client.submit_job(job)
    waiting = threading.Semaphore(0)

    def wait(_: int) -> str:
        waiting.release()
        return client.wait_job(job.id, 20_000).state

    with ThreadPoolExecutor(5) as pool:
        found = pool.map(wait, range(5))
        for _ in range(5):
            waiting.acquire()
        client.kill_job(job.id)
        assert list(found) == ["killed"] * 5


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_jobs_are_for_async_programs_too(live: Live, backend: str) -> None:
    """The same calls."""
    job = job_of("completes")

    async def main() -> str:
        async with AsyncClient(live.address) as client:
            await client.submit_job(job)
            return (await client.wait_job(job.id, 20_000)).state

    assert anyio.run(main, backend=backend) == "completed"


# --- HTTP


def test_jobs_over_http(live: Live) -> None:
    """A job is submitted, listed, read and sealed, and its outcome waited for."""
    name = f"runs-{next(_serial)}"
    said = {
        "id": name,
        "workflow": [["in", "out"]],
        "catalog": [{"type": "input", "name": "in", "queue": "a"}, {"type": "output", "name": "out", "queue": "b"}],
        "max_slots": 1,
    }
    assert live.http.post("/v1/jobs", json=said).json()["repeat"] is False
    again = live.http.post("/v1/jobs", json=said)
    assert (again.status_code, again.json()["repeat"]) == (201, True)
    assert live.http.post("/v1/jobs", json={**said, "metadata": {"x": 1}}).status_code == 409
    while not (found := live.http.get(f"/v1/jobs/{name}").json())["ready"] or not found["progress"].get("batch"):
        assert found["state"] in ("waiting", "running")
    assert found["progress"]["batch"] == 4 and found["job"]["catalog"][0]["queue"] == "a"
    assert name in {one["id"] for one in live.http.get("/v1/jobs?state=running").json()["jobs"]}
    assert live.http.post(f"/v1/jobs/{name}/seal", json={"input": "in"}).status_code == 200
    ended = live.http.get(f"/v1/jobs/{name}/outcome?wait_ms=20000").json()
    assert (ended["state"], ended["error"]) == ("completed", "")
    assert live.http.delete(f"/v1/jobs/{name}").status_code == 409


# --- command line

PIPELINES = """
from onyxq import Function, Input, Job, Output


def upper(segment):
    return helper(segment).upper()


def helper(segment):
    return segment.strip()


job = Job(
    id="{id}",
    workflow=[("in", "upper"), ("upper", "out")],
    catalog=[Input("in", queue="a"), Function("upper", upper), Output("out", queue="b")],
    max_slots=1,
)
not_a_job = 5
"""


class Line:
    """Runs commands on the cluster and reads their output."""

    def __init__(self, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
        self._connect = ["--connect", live.address]
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        code = run([*arguments, *self._connect])
        said = self._capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def line(live: Live, capsys: pytest.CaptureFixture[str]) -> Line:
    """Return the command line of this cluster."""
    return Line(live, capsys)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a file with a job of the id; return ``FILE.py:job``."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(name: str) -> str:
        file = tmp_path / "pipelines.py"
        file.write_text(PIPELINES.format(id=name))
        return f"{file}:job"

    return write


def fresh(kind: str) -> str:
    """Return an id that no other test uses."""
    return f"{kind}-{next(_serial)}"


def test_a_job_of_a_file_is_submitted_and_waited_for(line: Line, written: Callable[[str], str]) -> None:
    """Its functions are sent with it; the exit code shows how it ended."""
    name = fresh("completes")
    assert line("job", "submit", written(name)) == (0, f"{name}\n", "")
    code, out, _ = line("job", "wait", name, "--timeout", "20s")
    assert (code, out) == (0, f"{name} completed\n")
    code, out, _ = line("job", "show", name)
    assert code == 0 and re.search(r"^rows.total +7\b", out, re.M), out
    assert re.search(r"^input in +7 rows read", out, re.M)
    code, out, _ = line("job", "show", name, "--json")
    (function,) = [task for task in json.loads(out)["job"]["catalog"] if task["type"] == "function"]
    assert function["fn"]["named"] == "upper" and function["fn"]["pickled"] > 100
    failing = fresh("fails")
    code, out, err = line("job", "submit", written(failing), "--wait", "--timeout", "20s")
    assert code == 1 and f"{failing} failed: ZeroDivisionError" in out and f"submitted {failing}" in err
    again = fresh("completes")
    code, out, _ = line("job", "submit", written(name), "--id", again, "--wait", "--json")
    assert code == 0 and json.loads(out)["id"] == again


def test_jobs_are_listed_shown_sealed_and_killed(line: Line, written: Callable[[str], str]) -> None:
    """They are shown as tables, and as JSON for programs."""
    name = fresh("runs")
    line("job", "submit", written(name))
    code, out, _ = line("job", "list")
    assert code == 0 and out.split()[:4] == ["id", "state", "driver", "slots"] and name in out
    found = json.loads(line("job", "list", "--state", "running", "--json")[1])["jobs"]
    assert name in {one["id"] for one in found} and {one["state"] for one in found} == {"running"}
    code, out, _ = line("job", "show", name)
    assert code == 0 and "workflow" in out and "in->upper upper->out" in out
    assert line("job", "wait", name, "--timeout", "10ms")[0] == 6
    assert line("job", "seal", name, "nothing")[0] == 2
    assert "sealed" in line("job", "seal", name, "in")[1]
    assert line("job", "wait", name, "--timeout", "20s")[0] == 0
    assert line("job", "kill", name)[0] == 4
    assert line("job", "kill", "nobody")[0] == line("job", "show", "nobody")[0] == 3
    other = fresh("runs")
    line("job", "submit", written(other))
    assert json.loads(line("job", "kill", other, "--json")[1])["state"] == "killed"
    assert line("job", "wait", other)[:2] == (1, f"{other} killed\n")


def test_what_cannot_be_submitted_is_told_by_the_command(line: Line, written: Callable[[str], str]) -> None:
    """Exit codes are those of usage errors and conflicts."""
    name = fresh("runs")
    target = written(name)
    file = target.removesuffix(":job")
    for bad, said in (
        (f"{file}:not_a_job", "it has job"),
        (f"{file}:nothing", "no onyxq.Job called 'nothing'"),
        (file, "is not FILE.py:NAME"),
        ("/nowhere/pipelines.py:job", "No such file"),
        ("no.such.module:job", "there is no module"),
    ):
        code, _, err = line("job", "submit", bad)
        assert code == 2 and said in err, err
    Path(file).write_text("def broken(:\n")
    assert line("job", "submit", target)[0] == 2
    assert line("job", "submit", written(name))[0] == 0
    Path(file).write_text(PIPELINES.format(id=name).replace("max_slots=1", "max_slots=2"))
    code, _, err = line("job", "submit", target)
    assert code == 4 and "another job" in err
    line("job", "kill", name)


def commit(client: Client, name: str, batch: int) -> None:
    """Commit a batch as the job's driver does."""
    record = msgpack.packb({"offsets": b"%d" % batch, "mark": "", "inputs": ["in"], "sources": b""})
    version = client.job(name)["version"]
    client.commit_batch(name=f"{name}/{batch}", job=name, version=version, batch=batch, offsets=record)


def test_a_job_is_replayed_by_a_command(client: Client, line: Line) -> None:
    """From the start, from a time or from a batch that the log has; the error of a refusal names its cause.

    A log collection trims the places of earlier batches, and the definitions of jobs that have ended.
    """
    job = job_of("runs", catalog=[Input("in", format="text", path="/in"), Function("work", "os.path:basename"),
                                  Output("out", queue="b")])  # fmt: skip
    client.submit_job(job)
    commit(client, job.id, 0)
    commit(client, job.id, 1)
    for said, what in (
        (("--from", "start"), "output 'out': queue 'b' would get its tasks again"),
        (("--from", "soon", "--same-outputs"), "a time looks like"),
        (("--from", "start", "--output", "out"), "is not NAME=PLACE"),
        (("--from", "2", "--same-outputs"), "it has 1 to 1"),
    ):
        code, out, err = line("job", "replay", job.id, *said)
        assert (code, out) == (2, "") and what in err, err
    assert line("job", "replay", "nobody", "--from", "start", "--same-outputs")[0] == 3
    code, out, _ = line("job", "replay", job.id, "--from", "1", "--output", "out=again")
    assert code == 0 and out.startswith(f"{job.id}-replay-")
    assert client.job(out.strip())["digest"] != client.job(job.id)["digest"]
    name = fresh("completes")
    said = ("--from", "2026-01-01T00:00:00+00:00", "--id", name, "--same-outputs", "--wait")
    assert line("job", "replay", job.id, *said)[:2] == (0, f"{name} completed\n")
    assert line("log", "gc")[0] == 0
    commit(client, job.id, 2)
    code, _, err = line("job", "replay", job.id, "--from", "1", "--same-outputs")
    assert code == 2 and "it has 2 to 2" in err and "log collection" in err
    assert line("job", "replay", job.id, "--from", "2", "--same-outputs")[0] == 0
    assert line("job", "replay", name, "--from", "start", "--same-outputs")[0] == 4  # Its definition is not kept.


def test_without_any_peer_for_it_a_job_is_taken_and_waits() -> None:
    """No peer of the cluster hosts Spark."""
    with running() as cluster:
        submit = functools.partial(api.submit, connect=cluster.addresses[0])
        job = job_of("runs")
        assert submit(job) == job.id
        found = api.job(job.id, cluster.addresses[0])
        assert found["state"] == "waiting" and "slots" in found["why"]


def test_dead_letters_are_listed_counted_shown_and_sent_again_by_commands(client: Client, line: Line) -> None:
    """A long list says how it continues; the exit code of an unknown job or letter is 3."""
    job = job_of("runs", dead_letters=True)
    client.submit_job(job)
    version = client.job(job.id)["version"]
    output = QueueOutput(letters.queue_of(job.id), own=True)
    share = Share(partitions=64, now_ms=time.time_ns() // 1_000_000, random_64=lambda: 7)
    for number, error in enumerate(("KeyError", "ValueError", "ValueError")):
        said = (error, f"no {number}", "line 1\nline 2")
        made = letters.failed(task="work", way="", segment={"n": number}, error=said)
        share.add(output, letters.stamped(made, job=job.id, batch=0, attempt=1), name="<letter>")
    mine = {"job": job.id, "version": version}
    prepared = client.call("jobs.prepare", {"name": f"{job.id}/share", "enqueue": share.take(), **mine})["prepared"]
    client.call("jobs.commit", {"name": f"{job.id}/0", "prepared": [prepared], "batch": 0, "offsets": b"x", **mine})

    found = json.loads(line("job", "letters", job.id, "--error", "KeyError: no", "--json")[1])["letters"]
    assert [(one["task"], one["segment"], one["batch"]) for one in found] == [("work", '{"n":0}', 0)]
    code, out, err = line("job", "letters", job.id, "--limit", "1")
    assert code == 0 and out.split()[:4] == ["id", "task", "error", "message"] and "--after " in err
    code, out, _ = line("job", "letters", job.id, "--count")
    assert [row.split() for row in out.splitlines()[-2:]] == [["work", "KeyError", "1"], ["work", "ValueError", "2"]]
    code, out, _ = line("job", "letters", job.id, "--letter", found[0]["id"])
    assert code == 0 and re.search(r"^message +no 0$", out, re.M) and "line 2" in out
    assert line("job", "letters", job.id, "--letter", "0" * 40)[0] == line("job", "letters", "nobody")[0] == 3
    assert line("job", "letters", job.id, "--letter", "0")[0] == 2

    code, out, _ = line("job", "requeue", job.id, "--task", "work", "--error", "ValueError")
    assert code == 0 and re.search(r"^count +2$", out, re.M) and f"{job.id}-requeue-" in out
    assert len(json.loads(line("job", "letters", job.id, "--json")[1])["letters"]) == 1
    client.kill_job(job.id)
