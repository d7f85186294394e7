"""Schedules in words, and the times at which a periodic task ran last."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime

import httpx
import pytest

from onyxq import App, Client
from onyxq.interfaces.dashboard.periodic import last_times
from onyxq.interfaces.dashboard.schedules import in_words
from onyxq.operations.table.periodic import PeriodicView
from tests.interfaces.live_world import running


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("every 1s", "every second"),
        ("every 90s", "every 90 seconds"),
        ("every 1d", "every day"),
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("7,37 * * * *", "every hour at :07 and :37"),
        ("@hourly", "every hour"),
        ("5 */6 * * *", "every 6 hours at :05"),
        ("30 3 * * *", "every day at 03:30"),
        ("0 9,17 * * mon,thu", "Monday and Thursday at 09:00 and 17:00"),
        ("30 3 * * mon-fri", "Monday to Friday at 03:30"),
        ("0 0 * * 0,6", "Saturday and Sunday at 00:00"),
        ("*/15 9-17 * * mon-fri", "every 15 minutes from 09:00 to 17:45, Monday to Friday"),
        ("0 0 1,15 * *", "on day 1 and 15 of the month at 00:00"),
        ("0 0 1 * mon", "on day 1 of the month or Monday at 00:00"),
        ("0 12 1 jan-mar *", "on day 1 of the month at 12:00, in January to March"),
        ("*/20 1,5,9 * * *", "every 20 minutes in the hours 1, 5 and 9"),
        ("of a newer version", "of a newer version"),
    ],
)
def test_a_schedule_is_said_in_words(schedule: str, words: str) -> None:
    """As a person would say it; a schedule that cannot be read stays as it is."""
    assert in_words(schedule) == words


def test_a_zone_is_said_where_it_matters() -> None:
    """An hourly schedule is the same in every zone."""
    assert in_words("30 3 * * *", "Europe/Berlin") == "every day at 03:30, Europe/Berlin"
    assert in_words("0 */6 * * *", "Europe/Berlin") == "every 6 hours, Europe/Berlin"
    assert in_words("*/5 * * * *", "Europe/Berlin") == "every 5 minutes"


def _periodic(schedule: str) -> PeriodicView:
    return PeriodicView(
        name="nightly",
        queue="reports",
        schedule=schedule,
        zone="Europe/Berlin",
        priority=0,
        missed="once",
        paused=False,
        next_ms=None,
        fired=3,
        format="bytes",
        data=b"",
    )


def test_the_last_times_of_a_schedule_are_known() -> None:
    """In its zone, however rarely it is due; none if the schedule cannot be read."""
    now_ms = round(datetime(2026, 7, 20, 12, tzinfo=UTC).timestamp() * 1000)

    def times(schedule: str) -> list[str]:
        found = last_times(_periodic(schedule), now_ms)
        return [datetime.fromtimestamp(one / 1000, UTC).strftime("%Y-%m-%d %H:%M") for one in found]

    assert times("30 3 * * mon-fri") == ["2026-07-16 01:30", "2026-07-17 01:30", "2026-07-20 01:30"]
    assert times("0 0 29 2 *") == ["2020-02-28 23:00", "2024-02-28 23:00"]
    assert times("of a newer version") == []


def test_a_row_shows_the_options_and_data_of_its_tasks() -> None:
    """Defaults are left out."""
    options = {"priority": 5, "missed": "skip", "retries": 1, "backoff_ms": 2_000, "expires_after_ms": 90_000}
    with running(http=True) as cluster, Client(cluster.addresses) as client:
        client.set_periodic("plain", "q", "every 1d")
        client.set_periodic("call", "q", "every 1d", payload=b'{"task": "add", "args": [1], "kwargs": {"by": "x"}}')
        client.set_periodic("full", "q", "every 1d", payload=b"all of it", **options)
        shown = httpx.get(f"http://{cluster.http_addresses[0]}/ui/periodic", timeout=60, trust_env=False).text
    call, full, plain = (
        html.unescape(re.sub("<[^>]*>", "", row)) for row in re.findall(r'<th scope="row">.*?</th>', shown, re.S)
    )
    said = "priority 5, missed times are skipped, 1 retry, first retry after 2 s, fails if not started within 90 s"
    assert full.split(maxsplit=3) == ["full", "to", "q", f"all of it {said}"]
    assert plain.split() == ["plain", "to", "q"]
    assert call.split(maxsplit=3) == ["call", "to", "q", 'add(1, by="x")']


def test_an_empty_page_shows_code_that_works() -> None:
    """It is a function of an application and its schedule, as users write them."""
    with running(http=True) as cluster:
        shown = httpx.get(f"http://{cluster.http_addresses[0]}/ui/periodic", timeout=60, trust_env=False).text
    (code,) = re.findall(r"<pre[^>]*>(.*?)</pre>", shown, re.S)
    app = App()
    exec(html.unescape(code), {"app": app})
    (one,) = app.periodics
    assert (one.name, one.schedule, one.zone) == ("nightly", "30 3 * * mon-fri", "Europe/Berlin")
