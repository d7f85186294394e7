"""Options of tasks: keys made of arguments, deadlines, and wrong options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from onyxq import App
from onyxq.errors import BadRequest, KeyTaken
from onyxq.testing import Cluster, open_cluster
from onyxq.worker import Worker


def headers(cluster: Cluster) -> dict[Any, tuple[Any, ...]]:
    """Return the first argument of each call, and its stored options."""
    found = cluster.client().list("q").tasks
    names = {task.id: task.args[0] if task.args else task.kwargs["customer"] for task in cluster.tasks("q")}
    return {names[task.id]: (task.ordering_key, task.unique_key, task.priority, task.retries) for task in found}


def test_keys_are_made_of_the_arguments() -> None:
    """A key comes from a template, a function, or the arguments; defaults of the function count."""
    app = App()

    @app.task(queue="q", name="send", ordering_key="customer {customer}/{kind}", retries=None, priority=3)
    async def send(customer: str, kind: str = "mail") -> None:
        """A task."""

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        send.enqueue("a")
        send.enqueue(kind="call", customer="b")
        send.options(ordering_key=lambda customer, kind: kind * 2, priority=0).enqueue("c")
        send.options(ordering_key="all").enqueue("d")
        send.options(ordering_key=None, unique_key="{customer}", retries=1).enqueue("e")
        assert headers(cluster) == {
            "a": ("customer a/mail", None, 3, None),
            "b": ("customer b/call", None, 3, None),
            "c": ("mailmail", None, 0, None),
            "d": ("all", None, 3, None),
            "e": (None, "e", 3, 1),
        }


@pytest.mark.parametrize(
    "delay", [{"delay": "10s"}, {"delay": 10}, {"delay": timedelta(seconds=10)}, {"delay_ms": "10s"}]
)
def test_a_call_is_delayed(delay: Any) -> None:
    """``delay`` is in seconds, as on the command line and for timeouts."""
    app = App()
    send = app.task(name="send", queue="q")(lambda: None)
    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task = send.options(**delay).enqueue()
        assert cluster.client().get(task).at_ms - cluster.client().get(send.enqueue()).at_ms in range(9_900, 10_100)
    with pytest.raises(BadRequest, match="exclude each other"):
        send.options(delay="1s", delay_ms=5)
    with pytest.raises(BadRequest, match="delay needs a unit: 5s or 5ms"):
        send.options(delay="5")


def test_calls_of_one_key_run_one_after_the_other() -> None:
    """They run in the order of their enqueues, for any concurrency."""
    app = App()
    seen: list[tuple[str, int]] = []
    running: list[str] = []

    @app.task(queue="q", ordering_key="{account}")
    async def book(account: str, number: int) -> None:
        assert account not in running
        running.append(account)
        await asyncio.sleep(1)
        running.remove(account)
        seen.append((account, number))

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        for number in range(4):
            for account in ("a", "b"):
                book.enqueue(account, number)
        cluster.drain()
        assert [number for account, number in seen if account == "a"] == [0, 1, 2, 3]
        assert [number for account, number in seen if account == "b"] == [0, 1, 2, 3]


def test_a_call_under_a_unique_key_is_one_task() -> None:
    """Its arguments are the latest ones until it starts."""
    app = App()
    seen: list[str] = []

    @app.task(queue="q", unique_key=lambda month, text: month)
    def report(month: str, text: str) -> None:
        seen.append(text)

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        assert report.enqueue("march", "draft") == report.enqueue("march", "final")
        cluster.drain()
        assert seen == ["final"]


def test_a_function_says_until_when_its_key_is_taken_and_what_a_repeat_does() -> None:
    """A single call can choose otherwise."""
    app = App()
    seen: list[str] = []

    @app.task(queue="q", unique_key="{month}", unique_until="purged", on_conflict="keep")
    def report(month: str, text: str) -> None:
        seen.append(text)

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        first = report.enqueue("march", "draft")
        assert report.enqueue("march", "final") == first
        with pytest.raises(KeyTaken) as taken:
            report.options(on_conflict="refuse").enqueue("march", "late")
        assert taken.value.existing == bytes.fromhex(first.id)
        cluster.drain()
        assert report.enqueue("march", "again") == first and seen == ["draft"]
        hourly = report.options(unique_until=None, unique_period="1h")
        second = hourly.enqueue("april", "draft")
        cluster.drain()
        assert hourly.enqueue("april", "again") == second
        cluster.advance(3_600)
        assert hourly.enqueue("april", "an hour later") != second


def test_a_call_that_nobody_ran_in_time_fails() -> None:
    """The time counts from when it is due, by the cluster's clock."""
    app = App()

    @app.task(queue="q", expires_after_ms=60_000)
    async def offer(number: int) -> int:
        return number

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        late, in_time = offer.enqueue(1), offer.options(delay_ms=100_000).enqueue(2)
        cluster.advance(110)
        cluster.drain()
        states = {task.id: task.state for task in cluster.tasks("q")}
        assert (states[late], states[in_time]) == ("failed", "completed")


def test_dependencies_can_be_named() -> None:
    """A call may depend on tasks of any kind."""
    app = App()
    seen: list[int] = []

    @app.task(queue="q", retries=0)
    async def step(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise ValueError("boom")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        first = step.options(delay_ms=1_000).enqueue(1)
        step.options(depends=[first], on_dependency_failed="run").enqueue(2)
        cluster.drain()
        assert seen == [1, 2]


def test_a_step_of_a_flow_says_what_becomes_of_it_if_an_earlier_one_fails() -> None:
    """It gets its dependencies from the flow."""
    app = App()
    seen: list[int] = []

    @app.task(queue="q", retries=0)
    async def step(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise ValueError("boom")

    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        app.chain(step.s(1), app.group(step.options(on_dependency_failed="run").s(2), step.s(3))).enqueue()
        cluster.drain()
        assert seen == [1, 2]


def refused(make: Callable[[], Any]) -> str | None:
    """Return the wrong field."""
    with pytest.raises(BadRequest) as caught:
        make()
    return caught.value.field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ordering_key": "{nobody}"}, "ordering_key"),
        ({"unique_key": "{to"}, "unique_key"),
        ({"unique_key": 5}, "unique_key"),
        ({"unique_until": "started"}, "unique_until"),
        ({"unique_key": "{to}", "unique_until": "tomorrow"}, "unique_until"),
        ({"unique_key": "{to}", "unique_period": "often"}, "unique_period"),
        ({"unique_key": "{to}", "unique_period": 0}, "unique_period"),
        ({"unique_key": "{to}", "on_conflict": "panic"}, "on_conflict"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"expires_after_ms": 0}, "expires_after_ms"),
        ({"expires_after_ms": 1, "expires_ms": 5}, "expires_after_ms"),
        ({"runs": "anywhere"}, "runs"),
        ({"runs": "process"}, "runs"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_wrong_options_are_told_where_they_are_written(options: dict[str, Any], field: str) -> None:
    """They are not first reported when a task comes."""
    app = App()

    def send(to: str) -> None:
        """A task that another process cannot import."""

    assert refused(lambda: app.task(**options)(send)) == field


def test_a_worker_takes_one_queue_as_a_text() -> None:
    """As `Client.claim` does; the letters are not names of queues."""
    assert App().worker("mail").queues == App().worker(["mail"]).queues == ["mail"]
    assert Worker(lambda claim: asyncio.sleep(0), queues="mail").queues == ["mail"]


def test_wrong_options_of_a_call_are_told() -> None:
    """Reported are unknown options, impossible keys, and an async function in a thread."""
    app = App("nowhere:1")

    @app.task
    def send(to: str) -> None:
        """A task."""

    async def wait() -> None:
        """Another one."""

    unchecked: Any = send
    assert refused(lambda: unchecked.options(colour="red")) == "colour"
    assert refused(lambda: unchecked.options(runs="process")) == "runs"
    assert refused(lambda: send.options(ordering_key=lambda to: to[5]).s("x")) == "ordering_key"
    assert refused(lambda: unchecked.options(unique_key=lambda to: 5).s("x")) == "unique_key"
    assert refused(lambda: send.options(unique_key="x").s("x")) == "unique_key"
    assert refused(lambda: send.options(expires_after_ms=5).s("x")) == "expires_after_ms"
    assert refused(lambda: app.task(runs="thread")(wait)) == "runs"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lease_ms", 10, "1s to 24h, "),
        ("lease_ms", None, "1s to 24h, "),
        ("wait_ms", "11m", "0s to 10m, "),
        ("drain_ms", -5, "0s or more, "),
        ("ahead", -1, "None or a whole number from 0"),
        ("concurrency", 0, "a whole number from 1"),
        ("concurrency", "4", "a whole number from 1"),
        ("concurrency_max", 1.5, "None or a whole number from 1"),
        ("tasks_per_process", 0, "None or a whole number from 1"),
    ],
)
def test_a_wrong_number_of_a_worker_is_refused_when_it_is_made(name: str, value: Any, expected: str) -> None:
    """The error names it, before anything is claimed."""
    with pytest.raises(BadRequest) as refused:
        App("127.0.0.1:1").worker(["q"], **{name: value})
    assert refused.value.field == name
    assert refused.value.message.startswith(f"{name} must be {expected}")
    assert refused.value.message.endswith(f", not {value!r}")
