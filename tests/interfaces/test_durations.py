"""Durations in Python: numbers, `timedelta` and text, wherever one is taken."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest

import onyxq
from onyxq import App, Client, Step, api
from onyxq.errors import BadRequest, TimedOut
from onyxq.system.durations import as_milliseconds, as_moment_ms, as_seconds
from onyxq.testing import Cluster, open_cluster


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (1500, 1500),
        (timedelta(seconds=1.5), 1500),
        ("1500ms", 1500),
        ("1.5s", 1500),
        (" 2m ", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_a_duration_has_one_meaning(value: Any, ms: int) -> None:
    """A bare number has the unit of the field."""
    assert as_milliseconds(value, "x") == ms
    assert as_seconds(value, "x") == (1500 if value == 1500 else ms / 1000)


@pytest.mark.parametrize("value", ["", "10", "soon", "-5s", "10 parsecs"])
def test_other_text_is_refused(value: str) -> None:
    """The error names the field; text without a unit is ambiguous in a program."""
    with pytest.raises(BadRequest) as refused:
        as_milliseconds(value, "lease_ms")
    assert refused.value.field == "lease_ms" and refused.value.message.startswith("lease_ms ")


def test_every_call_of_a_client_takes_them() -> None:
    """The times that are stored show it."""
    with open_cluster(peers=1, seed=1) as cluster, cluster.client() as client:
        now_ms = client.now_ms()
        client.set_queue("q", lease_ms="20s", backoff_ms=timedelta(seconds=3), retention_ms="2d")
        settings = client.queue("q")["settings"]
        assert (settings["lease_ms"], settings["backoff_ms"], settings["retention_ms"]) == (20_000, 3_000, 172_800_000)
        late = client.enqueue("q", b"x", delay_ms="1h", timeout_ms="20s")
        assert 3_600_000 <= client.get(late).at_ms - now_ms <= 3_610_000
        (made,) = client.make_ids(1, delay_ms=timedelta(hours=1))
        assert client.get(client.enqueue("q", b"y", id=made)).at_ms - now_ms >= 3_600_000
        client.chain(Step("q", b"z", delay="2h", backoff_ms="1s")).enqueue()
        with client.transaction() as tx:
            tx.enqueue("q", b"w", delay=7_200)
        assert len([one for one in client.list("q").tasks if one.at_ms - now_ms >= 7_200_000]) == 2
        client.set_timer("t", "1h", "http://127.0.0.1:1/")
        assert 3_600_000 <= client.timer("t")["timeout"] <= 3_600_000
        with pytest.raises(TimedOut):
            client.wait(late, "10ms")
        cluster.advance("1h")
        (one, other) = client.claim("q", max=2, lease_ms="10s", wait_ms="5s")
        client.renew(one, "30s")
        client.fail(other, "no", retry_in_ms=timedelta(days=1))
        client.postpone(one, "2h", "not open")
        assert client.get(one.id).at_ms - now_ms >= 7_200_000
        assert client.get(other.id).at_ms - now_ms >= 86_400_000


def test_options_of_functions_take_them() -> None:
    """They do so at the decorator, for a call and for a worker; a wrong one is refused at the decorator."""
    app = App()

    @app.task(queue="q", timeout_s="1m", backoff_ms=timedelta(seconds=2), expires_after_ms="1h")
    def run() -> None:
        """A task."""

    assert run._options.timeout_s == 60
    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(app)
        task = cluster.client().get(run.options(delay_ms="10m", timeout_s=timedelta(minutes=2)).enqueue())
        assert task.expires_ms is not None and abs(task.expires_ms - task.at_ms - 3_600_000) < 1_000
        assert b'"timeout_s":120' in task.data
        cluster.start_worker(app, lease_ms="20s", wait_ms="1s", drain_ms=timedelta(seconds=1))
        cluster.drain(reach_s="1d")
    for name in ("timeout_s", "backoff_ms", "delay_ms", "expires_after_ms"):
        with pytest.raises(BadRequest) as refused:
            app.task(**{name: "soon"})  # type: ignore[call-overload]
        assert refused.value.field == name
    with pytest.raises(BadRequest, match="unit"):
        app.worker(lease_ms="10")


class Nowhere(tzinfo):
    """A time zone that does not know its offset; Python calls times of it naive."""

    def utcoffset(self, dt: datetime | None) -> None:
        """Return no offset."""

    def dst(self, dt: datetime | None) -> None:
        """Return no offset of summer time."""

    def tzname(self, dt: datetime | None) -> None:
        """Return no name."""


def test_a_time_may_be_a_datetime_of_any_zone() -> None:
    """Functions and clients take it. Without a zone it would be a time of the wrong hour."""
    app = App()
    app.task(queue="q")(print)
    later = datetime(2201, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    ms = 7_300_065_600_000
    assert as_moment_ms(later, "at_ms") == as_moment_ms(ms, "at_ms") == ms
    for zone in (None, Nowhere()):
        with pytest.raises(BadRequest, match="at_ms needs a time zone"):
            as_moment_ms(datetime(2201, 5, 1, 14, tzinfo=zone), "at_ms")
    with open_cluster(peers=1, seed=1) as cluster, cluster.client() as client:
        cluster.use(app)
        run = app.tasks["print"]
        for task_id in (
            client.enqueue("q", b"", at_ms=later, expires_ms=later + timedelta(seconds=1)),
            run.options(at_ms=later, expires_after_ms="1s").enqueue("x"),
        ):
            task = client.get(task_id)
            assert (task.at_ms, task.expires_ms) == (ms, ms + 1_000)


def refused_by(call: Callable[[], Any]) -> str | None:
    """Return the field that a call is refused for."""
    with pytest.raises(BadRequest) as refused:
        call()
    return refused.value.field


def test_a_wrong_duration_names_its_field(tmp_path: Path) -> None:
    """This is so for each argument that takes one."""
    assert refused_by(lambda: Client(timeout_ms="10")) == "timeout_ms"
    assert refused_by(lambda: onyxq.open(tmp_path, timeout_ms="soon")) == "timeout_ms"
    assert refused_by(lambda: api.wait("job", timeout="soon")) == "timeout"
    with open_cluster(peers=1, seed=1) as cluster:
        _check_client(cluster)


def _check_client(cluster: Cluster) -> None:
    client = cluster.client()
    assert refused_by(lambda: client.enqueue("q", b"", delay_ms="x")) == "delay_ms"
    assert refused_by(lambda: client.enqueue("q", b"", backoff_ms="x")) == "backoff_ms"
    assert refused_by(lambda: client.enqueue("q", b"", timeout_ms="x")) == "timeout_ms"
    assert refused_by(lambda: client.claim("q", lease_ms="x")) == "lease_ms"
    assert refused_by(lambda: client.claim("q", wait_ms="x")) == "wait_ms"
    assert refused_by(lambda: client.claim("q", ahead_ms="x")) == "ahead_ms"
    assert refused_by(lambda: client.claim("q", timeout_ms="x")) == "timeout_ms"
    assert refused_by(lambda: client.wait(b"0" * 20, "x")) == "wait_ms"
    assert refused_by(lambda: client.set_queue("q", grace_ms="x")) == "grace_ms"
    assert refused_by(lambda: client.set_timer("t", "x", "http://127.0.0.1:1/")) == "timeout_ms"
    assert refused_by(lambda: client.task_store(1).claim("g", "x")) == "duration_ms"
    assert refused_by(lambda: cluster.advance("x")) == "seconds"
    assert refused_by(lambda: cluster.drain(patience_s="x")) == "patience_s"
