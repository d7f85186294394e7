"""The test kit with tasks that have keys, dependencies and deadlines, and queues that are paused."""

from __future__ import annotations

import pytest

from onyxq import App
from onyxq.testing import Cluster, NotDrained, open_cluster


def ran(cluster: Cluster) -> list[object]:
    """Return the first argument of every run that returned, in order."""
    return [run.args[0] for run in cluster.runs() if run.outcome == "returned"]


def test_a_drain_runs_what_waits_for_tasks_that_are_due_later() -> None:
    """Time passes until the delayed task is due, and its dependents follow."""
    app = App()

    @app.task
    def step(name: str) -> None:
        """One step."""

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        first = step.options(delay_ms=7_200_000).enqueue("first")
        step.options(depends=[first]).enqueue("second")
        assert {task.state for task in cluster.tasks()} == {"scheduled", "waiting"}
        done = cluster.drain()
        assert ran(cluster) == ["first", "second"]
        assert (done.completed, done.left) == (2, 0) and 7_200 <= done.seconds < 7_300


def test_what_waits_for_tasks_beyond_the_reach_is_left() -> None:
    """It counts as due later."""
    app = App()

    @app.task
    def step(name: str) -> None:
        """One step."""

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        first = step.options(delay_ms=7_200_000).enqueue("first")
        step.options(depends=[first]).enqueue("second")
        assert cluster.drain(reach_s=60).left == 2
        assert not cluster.runs()


def test_a_drain_says_which_queue_is_paused() -> None:
    """It does so at once, because waiting would not help."""
    app = App()

    @app.task(queue="mail")
    def send(to: str) -> None:
        """Send."""

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        client = cluster.client()
        client.pause("mail", by="me", why="test")
        send.enqueue("a")
        with pytest.raises(NotDrained, match="queue 'mail' is paused"):
            cluster.drain()
        client.resume("mail")
        cluster.drain()
        assert ran(cluster) == ["a"]


def test_tasks_tell_their_keys_and_what_they_wait_for() -> None:
    """They are shown as stored; a drain that cannot end says for what a task waits."""
    app = App()

    @app.task(ordering_key="{order}", retries=0)
    def pay(order: str, part: int) -> None:
        if part == 1:
            raise ValueError("no money")

    with open_cluster(seed=1, peers=1) as cluster:
        cluster.use(app)
        cluster.client().set_queue("default", on_dead="stops")
        pay.options(priority=3).enqueue("o1", 1)
        pay.enqueue("o1", 2)
        with pytest.raises(NotDrained, match="for its turn in ordering key 'o1'"):
            cluster.drain(patience_s=30)
        dead, waiting = cluster.tasks()
        assert (dead.state, dead.priority, dead.ordering_key) == ("failed", 3, "o1")
        assert waiting.state == "waiting"
        cluster.client().discard_dead([dead.id])
        cluster.drain()
        assert {task.state for task in cluster.tasks()} == {"cancelled", "completed"}
