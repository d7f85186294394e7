"""Failed attempts as users choose: their pauses, snoozes that do not count, and tasks that a worker does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onyxq import App, GiveUp, Retry, Snooze
from onyxq.errors import BadRequest
from onyxq.testing import Cluster, open_cluster
from onyxq.worker import retries
from onyxq.worker.retries import Ending, Retrying, asked, backed_off
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer
from tests.interfaces.worker_tasks import app as in_processes
from tests.interfaces.worker_world import a_call, play_in_real_time, until, with_worker

SLACK_S = 1.0
"""How late an attempt may start, in seconds."""


def begun(cluster: Cluster, name: str) -> list[float]:
    """Return the seconds between the starts of a task's attempts."""
    starts = [run.started_s for run in cluster.runs(name)]
    return [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]


def attempts(cluster: Cluster, queue: str) -> list[tuple[str, int]]:
    """Return state and counted attempts of each task of a queue."""
    return [(task.state, task.attempts) for task in cluster.client().list(queue).tasks]


def test_a_function_chooses_when_it_is_tried_again() -> None:
    """The attempt counts, and the reason is its error."""
    app = App()

    @app.task(queue="q", name="send", retries=2, backoff_ms=60_000)
    async def send() -> None:
        raise Retry("the relay is busy", after="20m")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = send.enqueue()
        cluster.drain(reach_s=7_200)
        pauses = begun(cluster, "send")
        assert len(pauses) == 2 and all(1_200 <= pause < 1_200 + SLACK_S for pause in pauses)
        found = cluster.client().get(task_id)
        assert (found.state, found.error) == ("failed", "Retry: the relay is busy")


def test_a_snooze_does_not_count() -> None:
    """A task without retries may snooze, and has all its attempts left."""
    app = App()
    opened: list[int] = []

    @app.task(queue="q", name="order", retries=0)
    def order() -> str:
        opened.append(1)
        if len(opened) < 4:
            raise Snooze("not open yet", after=600)
        return "ordered"

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = order.enqueue()
        cluster.drain(reach_s=7_200)
        pauses = begun(cluster, "order")
        assert len(pauses) == 3 and all(600 <= pause < 600 + SLACK_S for pause in pauses)
        assert attempts(cluster, "q") == [("completed", 0)]
        assert order.result(task_id) == "ordered"


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        ((10, "20s", timedelta(seconds=30)), [10, 20, 30]),
        (lambda retry, error: 100 * retry if isinstance(error, OSError) else 5, [100, 200, 300]),
        ("20s", [20, 20, 20]),
        (timedelta(minutes=5), [300, 300, 300]),
    ],
    ids=["sequence", "function", "text", "timedelta"],
)
def test_a_task_has_its_own_curve_of_pauses(backoff: Any, expected: list[int]) -> None:
    """The last pause of a sequence is repeated."""
    app = App()

    @app.task(queue="q", name="fetch", retries=3, backoff=backoff)
    async def fetch() -> None:
        raise OSError("reset")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        fetch.enqueue()
        cluster.drain(reach_s=7_200)
        pauses = begun(cluster, "fetch")
        assert len(pauses) == 3
        assert all(want <= pause < want + SLACK_S for want, pause in zip(expected, pauses, strict=True))


def test_a_worker_gives_back_what_it_does_not_know() -> None:
    """During a rolling deployment old workers must not use up the attempts of new tasks."""
    old, new = App(), App()

    @old.task(queue="q", name="send")
    async def send() -> None:
        """A task of the old program."""

    @new.task(queue="q", name="report", retries=0)
    async def report() -> str:
        return "reported"

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.start_worker(old)
        task_id = cluster.client().enqueue("q", a_call("report"), retries=0, format="json")
        cluster.advance(60)
        assert cluster.client().get(task_id).state != "failed"
        cluster.start_worker(new)
        cluster.drain(reach_s=600)
        assert json.loads(cluster.client().get(task_id).result or b"") == "reported"
        assert attempts(cluster, "q") == [("completed", 0)]
        assert not cluster.runs("send")


@pytest.mark.parametrize(("age_s", "pause_ms"), [(-3, 5_000), (20, 5_000), (100, 10_000), (1e6, 600_000)])
def test_what_nobody_knows_is_claimed_less_and_less_often(age_s: float, pause_ms: int) -> None:
    """Otherwise a misspelled name would keep all workers busy; the error names what is known."""
    error = retries.unknown_task("sned", ["send", "index"], age_s)
    assert asked(error) == Ending(pause_ms, counted=False, level=error.level)
    assert str(error) == "this worker has no task named 'sned'; did you mean send? It knows: index, send"
    other = str(retries.unknown_task("bill", ["send"], age_s))
    assert other.startswith("this worker has no task named 'bill'; it knows: send. ") and "--import" in other


def test_a_broken_backoff_leaves_the_pause_to_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    """The failed attempt is reported nevertheless."""
    broken: list[Callable[[int, BaseException], Any]] = [lambda retry, error: retry / 0, lambda retry, error: "soon"]
    for backoff in broken:
        assert backed_off(Ending(), backoff, 1, OSError()) == Ending()
    assert len(caplog.records) == 2
    assert backed_off(asked(Retry(after=1)), (5,), 1, OSError()) == Ending(1_000, chosen=True)


@pytest.mark.parametrize("backoff", ["soon", "10", (), (1, -1), -5, b"10s", (1, "2")])
def test_a_wrong_backoff_is_refused_where_it_is_written(backoff: Any) -> None:
    """Calls cannot change it, because workers read it from the function."""
    app = App()
    with pytest.raises(BadRequest) as caught:
        app.task(backoff=backoff)(print)
    assert caught.value.field == "backoff"
    unchecked: Any = app.task(name="fine", backoff=(1,))(print)
    with pytest.raises(BadRequest):
        unchecked.options(backoff=(2,))


def test_a_task_that_is_given_up_is_a_dead_letter_at_once() -> None:
    """It has retries left, and all of them again once it is requeued."""
    app = App()
    known: list[str] = []

    @app.task(queue="q", name="send", retries=5)
    async def send(to: str) -> str:
        if to not in known:
            raise GiveUp("550 no such user")
        return to

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = send.enqueue("ann")
        cluster.drain()
        found = cluster.client().get(task_id)
        assert (found.state, found.error) == ("failed", "GiveUp: 550 no such user")
        assert len(cluster.runs("send")) == 1
        known.append("ann")
        cluster.client().requeue_dead([task_id])
        cluster.drain()
        assert send.result(task_id) == "ann"


def test_a_function_whose_result_cannot_be_stored_runs_once() -> None:
    """It has done its work: 25 retries would do it 25 times again."""
    app = App()

    @app.task(queue="q")
    def names() -> Any:
        return {"ann", "ben"}

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = names.enqueue()
        cluster.drain()
        found = cluster.client().get(task_id)
        assert found.state == "failed" and found.error is not None
        assert "has run, but its result cannot be stored" in found.error
        assert len(cluster.runs()) == 1


@pytest.mark.parametrize(
    ("options", "error", "runs"),
    [
        ({"retry_on": OSError}, ConnectionError("reset"), 3),
        ({"retry_on": (OSError, KeyError)}, ValueError("wrong"), 1),
        ({"give_up_on": ValueError}, UnicodeError("wrong"), 1),
        ({"give_up_on": ValueError}, OSError("reset"), 3),
        ({"retry_on": OSError, "give_up_on": ConnectionError}, ConnectionError("reset"), 1),
        ({"retry_for_s": 15}, OSError("reset"), 2),
        ({"retry_for_s": 1_000}, OSError("reset"), 3),
        ({"retry_on": OSError}, Retry("later", after=1), 3),
    ],
)
def test_retries_depend_on_the_exception_and_on_time(
    options: Any, error: Exception, runs: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What a function raises to choose is not an exception in this sense. The log says if the time is over."""
    app = App()

    @app.task(queue="q", name="fetch", retries=2, backoff=(10,), **options)
    async def fetch() -> None:
        raise error

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task_id = fetch.enqueue()
        cluster.drain(reach_s=3_600)
        assert len(cluster.runs("fetch")) == runs
        assert cluster.client().get(task_id).state == "failed"
    assert ("given up: retry_for_s is over" in caplog.text) == (options == {"retry_for_s": 15})


def test_the_time_for_retries_counts_from_the_due_time_that_a_repeat_set() -> None:
    """A repeat under a unique key moves the due time, and the task keeps its id."""
    app = App()

    @app.task(queue="q", name="fetch", unique_key="all", retries=2, backoff=(10,), retry_for_s=60)
    async def fetch() -> None:
        raise OSError("reset")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        first = fetch.options(delay_ms="1h").enqueue()
        cluster.advance(1_800)
        assert fetch.options(delay_ms="1h").enqueue() == first
        cluster.drain()
        assert len(cluster.runs("fetch")) == 3


def test_an_error_without_a_text_fails_its_task_and_not_the_worker() -> None:
    """The worker reports it, and runs the next task."""
    app = App()

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    @app.task(queue="q", retries=0)
    async def fail() -> None:
        raise Mute

    @app.task(queue="q")
    async def work() -> None: ...

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        failed, done = fail.enqueue(), work.enqueue()
        cluster.drain()
        found = {task.id: (task.state, task.error) for task in cluster.tasks("q")}
        assert found == {failed: ("failed", "Mute: its text cannot be made"), done: ("completed", None)}


@pytest.mark.parametrize("name", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("wrong", ["OSError", 5, (OSError, "x"), [OSError], OSError("x")])
def test_a_wrong_class_of_exceptions_is_refused_where_it_is_written(name: str, wrong: Any) -> None:
    """It would otherwise show at the first failure."""
    with pytest.raises(BadRequest) as caught:
        Retrying(**{name: wrong}).check()
    assert caught.value.field == name


@pytest.mark.parametrize("after", [-1, float("nan"), 1e9, "10", None])
def test_a_wrong_pause_is_refused_where_it_is_raised(after: Any) -> None:
    """Its traceback then points at the line."""
    with pytest.raises(BadRequest):
        raise Snooze(after=after)


def test_functions_in_processes_choose_as_well() -> None:
    """What they ask for crosses the pipe."""

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        worker = in_processes.worker(concurrency=1)

        async def body(client: Any, peer: FakePeer) -> None:
            task_id = await client.enqueue("p", a_call("snooze"))
            await until(lambda: bool(cluster.postponed))
            assert cluster.postponed == [(task_id, "too early", 90_000)]
            await client.enqueue("p", a_call("again"))
            await until(lambda: len(cluster.outcomes) == 1)
            (failed,) = peer.arguments("fail")
            assert failed["items"][0][3:5] == ["Retry: busy", 45_000]
            assert 'raise Retry("busy", after=45)' in failed["items"][0][5]
            await client.enqueue("p", a_call("no_user"))
            await client.enqueue("p", a_call("missing"))
            await until(lambda: len(cluster.outcomes) == 3)
            assert [given_up["items"][0][3] for given_up in peer.arguments("give_up")] == [
                "GiveUp: no such user",
                "FileNotFoundError: nothing",
            ]
            worker.stop()

        await with_worker(cluster, network, worker, body)

    play_in_real_time(scenario, "trio")
