"""Periodic calls of an application's functions, set up by its workers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from threading import Event
from types import MappingProxyType
from typing import Any

import anyio
import pytest

from onyxq import App, Client
from onyxq.core.queue_settings import DEFAULTS
from onyxq.errors import BadRequest, NotEnabled
from onyxq.node.node import Node
from onyxq.testing import open_cluster
from onyxq.worker.periodic import keep, orphans
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, client_of, played


def an_app(
    seen: list[str], schedule: str = "every 60s", *, options: Mapping[str, Any] = MappingProxyType({}), **how: Any
) -> App:
    """Return an application with a periodic function."""
    app = App()

    @app.periodic(schedule, **how)
    @app.task(name="tidy", queue="house", priority=2, **options)
    async def tidy(room: str = "kitchen") -> None:
        seen.append(room)

    return app


def set_up_entries(client: Client) -> int:
    """Return the number of entries in the log that set up a periodic task."""
    entries = [entry["entry"] for record in client.log(limit=1_000)["records"] for entry in record["entries"]]
    return entries.count("set_periodic")


def test_a_periodic_function_runs_when_a_worker_has_set_it_up() -> None:
    """It runs once for each time, also with several workers; it can still be called directly."""
    seen: list[str] = []
    app = an_app(seen)
    with open_cluster(peers=1, seed=1) as cluster:
        cluster.start_worker(app)
        cluster.start_worker(app)
        cluster.until(lambda: cluster.client().periodics())
        cluster.advance(600)
        assert 9 <= len(seen) <= 11
        assert {task.priority for task in cluster.client().list("house").tasks} == {2}
        app.tasks["tidy"].enqueue("bath")
        cluster.until(lambda: "bath" in seen)
        assert set(seen) == {"kitchen", "bath"}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"retries": 0}, {"retries": 0}),
        ({"retries": None}, {"retries": None}),
        ({"backoff_ms": "5s"}, {"backoff_ms": 5_000}),
        ({"expires_after_ms": 30_000}, {"expires_after_ms": 30_000}),
    ],
)
def test_the_tasks_of_a_periodic_function_have_its_options(given: dict[str, Any], shown: dict[str, Any]) -> None:
    """The periodic task carries them; a later version of the program without them takes them away."""
    names = ("retries", "backoff_ms", "expires_after_ms")
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        first = cluster.start_worker(an_app([], options=given))
        cluster.until(lambda: client.periodics())
        found = client.periodic("tidy")
        assert {name: found[name] for name in names if name in found} == shown
        cluster.until(lambda: client.list("house").tasks)
        (task,) = client.list("house").tasks
        assert task.retries == shown.get("retries", DEFAULTS.retries)
        assert task.expires_ms == (task.at_ms + 30_000 if "expires_after_ms" in shown else None)
        cluster.stop_worker(first)
        cluster.start_worker(an_app([]))
        cluster.until(lambda: not any(name in client.periodic("tidy") for name in names))


@pytest.mark.parametrize(
    "options",
    [{"delay_ms": 5_000}, {"unique_key": "tidy"}, {"ordering_key": "k"}, {"expires_ms": 1}],
)
def test_an_option_that_periodic_calls_would_not_have_is_refused(options: dict[str, Any]) -> None:
    """The cluster enqueues the calls; the function alone may have the option."""
    app = App()
    task = app.task(name="tidy", queue="house", timeout_s=9, **options)(lambda: None)
    (name,) = options
    with pytest.raises(BadRequest, match=f"{name} would not hold") as caught:
        app.periodic("every 60s")(task)
    assert caught.value.field == name
    assert not app.periodics


def test_a_worker_changes_what_is_different_and_leaves_a_pause() -> None:
    """An operator's pause survives new versions of the application."""
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        first = cluster.start_worker(an_app([], "0 3 * * *", zone="Europe/Berlin", missed="skip", name="nightly"))
        cluster.until(lambda: client.periodics())
        before = client.periodic("nightly")
        assert (before["schedule"], before["zone"], before["missed"]) == ("0 3 * * *", "Europe/Berlin", "skip")
        client.pause_periodic("nightly")
        cluster.stop_worker(first)
        cluster.start_worker(an_app([], "0 4 * * *", zone="Europe/Berlin", missed="skip", name="nightly"))
        cluster.until(lambda: client.periodic("nightly")["schedule"] == "0 4 * * *")
        assert client.periodic("nightly")["paused"]


def test_a_worker_that_finds_all_as_it_should_be_appends_nothing() -> None:
    """This holds however often workers start."""
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        cluster.start_worker(an_app([], "0 3 * * *"))
        cluster.until(lambda: client.periodics())
        cluster.start_worker(an_app([], "0 3 * * *"))
        cluster.advance(5)
        assert set_up_entries(client) == 1


def test_a_worker_sets_up_again_what_the_cluster_has_lost(caplog: pytest.LogCaptureFixture) -> None:
    """It looks once it is connected again, as after a restore, and says so. What exists stays as it is."""
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        app = an_app([], "0 3 * * *", name="lost")
        app.periodic("0 4 * * *", name="changed")(app.tasks["tidy"])
        cluster.start_worker(app)
        cluster.until(lambda: len(client.periodics()) == 2)
        client.remove_periodic("lost")
        client.set_periodic("changed", "house", "0 5 * * *")
        cluster.advance(60)
        assert [one["name"] for one in client.periodics()] == ["changed"]
        caplog.clear()
        cluster.start_peer(cluster.kill_peer())
        cluster.until(lambda: len(client.periodics()) == 2)
        cluster.advance(5)
        assert [one["schedule"] for one in client.periodics()] == ["0 5 * * *", "0 3 * * *"]
        told = [record.message for record in caplog.records if "was missing" in record.message]
        assert told == ["periodic task 'lost' was missing: it is set up again"]
        before = set_up_entries(client)
        cluster.start_peer(cluster.kill_peer())
        cluster.advance(60)
        assert set_up_entries(client) == before


def test_a_periodic_task_that_is_not_enabled_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """During an upgrade, peers do not know its options yet. The worker sets it up once they do."""
    encode, upgraded = Node.encode, Event()

    def encode_during_upgrade(node: Node, args: Any) -> bytes:
        if getattr(args, "options", None) and not upgraded.is_set():
            raise NotEnabled("set_periodic cannot be used yet")
        return encode(node, args)

    monkeypatch.setattr(Node, "encode", encode_during_upgrade)
    app = an_app([], "0 3 * * *", name="retried", options={"retries": 3})
    app.periodic("0 4 * * *", name="plain")(app.task(name="sweep", queue="house")(lambda: None))
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        cluster.start_worker(app)
        cluster.until(lambda: client.periodics(), within_s=60)
        cluster.advance(60)
        assert [one["name"] for one in client.periodics()] == ["plain"]
        upgraded.set()
        cluster.until(lambda: len(client.periodics()) == 2, within_s=60)
        assert client.periodic("retried")["retries"] == 3


@played
async def test_a_worker_that_waited_long_for_a_server_registers_at_once(
    cluster: FakeCluster, network: SimulatedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    """It says nothing until then: the worker has logged that it cannot connect."""
    done = anyio.Event()
    async with client_of(network) as client, anyio.create_task_group() as group:
        looking = partial(keep, client, [], tasks={}, queues=["house"], give_up=print, done=done.set)
        group.start_soon(looking)
        await anyio.sleep(60)
        peer = await cluster.start(network.host("a"), "a:1")
        with anyio.fail_after(1):
            await done.wait()
        assert peer.methods("periodic.list") == ["periodic.list"]
    assert "not checked yet" not in caplog.text


def test_a_worker_tells_of_calls_that_its_application_does_not_make(caplog: pytest.LogCaptureFixture) -> None:
    """The report has the command that ends them; calls of other applications or users are ignored.

    It comes once: a worker that connects again does not repeat it.
    """
    with open_cluster(peers=1, seed=1) as cluster:
        client = cluster.client()
        old = an_app([], "0 3 * * *")
        old.periodic("0 4 * * *", name="late")(old.tasks["tidy"])
        first = cluster.start_worker(old)
        cluster.until(lambda: len(client.periodics()) == 2)
        client.set_periodic("gone", "house", "every 1h", b'{"task": "sweep"}')
        client.set_periodic("plain", "house", "every 1h", b"not a call")
        client.set_periodic("elsewhere", "garden", "every 1h", b'{"task": "mow"}')
        cluster.stop_worker(first)
        caplog.clear()
        cluster.start_worker(an_app([], "0 3 * * *"))
        cluster.advance(5)
        told = [record.message for record in caplog.records if record.name == "onyxq.worker.periodic"]
        assert len(told) == 2
        assert "'gone' calls 'sweep', and this application has no such task" in told[0]
        assert "'late' calls 'tidy', and this application does not call it any more" in told[1]
        assert told[1].endswith("onyxq periodic remove late")
        assert len(client.periodics()) == 5
        client.remove_periodic("tidy")
        cluster.start_peer(cluster.kill_peer())
        cluster.until(lambda: len(client.periodics()) == 5)
        cluster.advance(5)
        assert [record.message for record in caplog.records if "calls" in record.message] == told


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"schedule": "0 25 * * *"}, "schedule"),
        ({"schedule": "every 5s", "zone": "Europe/Atlantis"}, "zone"),
        ({"schedule": "every 5s", "missed": "maybe"}, "missed"),
    ],
)
def test_a_wrong_schedule_is_told_where_it_is_written(how: dict[str, Any], field: str) -> None:
    """It is reported when the application is imported."""
    with pytest.raises(BadRequest) as caught:
        an_app([], **how)
    assert caught.value.field == field


def test_a_periodic_function_needs_no_arguments_and_has_a_name_of_its_own() -> None:
    """Other functions are refused at once."""
    app = App()

    @app.task
    def send(to: str) -> None:
        """A task that needs an argument."""

    @app.periodic("every 5s", name="beat")
    @app.task
    def beat() -> None:
        """A task."""

    unchecked: Any = print
    for task, field in ((send, "args.to"), (unchecked, "function"), (beat, "name")):
        with pytest.raises(BadRequest) as caught:
            app.periodic("every 5s", name="beat")(task)
        assert caught.value.field == field


def test_a_worker_starts_beside_periodic_data_that_is_nested_too_deeply() -> None:
    """Another program may have set it up. It does not call a function."""
    calls = {"other": b"[" * 100_000, "old": b'{"task": "tidy"}'}
    known = [{"name": name, "queue": "q", "data": data} for name, data in calls.items()]
    (warning,) = orphans(known, [], tasks={}, queues={"q"})
    assert "'old' calls 'tidy'" in warning
