"""Schedules: the meaning of a text and its due times, also when clocks are changed."""

from __future__ import annotations

import datetime
import itertools
import time
import zoneinfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.cron import NEVER_MS, last, next_ms, parse, times
from onyxq.errors import BadRequest

BERLIN, NEW_YORK, LORD_HOWE, APIA = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"


def at(text: str, zone: str = "UTC") -> int:
    """Return the time of a clock reading in a zone, the first one if it comes twice, in ms."""
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone)).timestamp() * 1000)


def shown(at_ms: int, zone: str = "UTC") -> str:
    """Return the clock reading of a time in a zone, with the offset from UTC."""
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, zoneinfo.ZoneInfo(zone))
    return moment.strftime("%a %Y-%m-%d %H:%M:%S %z").replace(":00 ", " ")


def run(text: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next times, as clock readings."""
    found = times(parse(text), zone, at(after, zone))
    return [shown(time_ms, zone) for time_ms in itertools.islice(found, count)]


# --- texts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-03-01T10:20:30", "Sun 2026-03-01 10:21 +0000"),
        ("*/15 * * * *", "2026-03-01T10:45:00", "Sun 2026-03-01 11:00 +0000"),
        ("5/20 * * * *", "2026-03-01T10:06:00", "Sun 2026-03-01 10:25 +0000"),
        ("10-20/5,50 * * * *", "2026-03-01T10:20:00", "Sun 2026-03-01 10:50 +0000"),
        ("30 4 * * mon-fri", "2026-03-06T04:30:00", "Mon 2026-03-09 04:30 +0000"),
        ("0 0 * * 7", "2026-03-02T00:00:00", "Sun 2026-03-08 00:00 +0000"),
        ("0 0 * * sat-sun", "2026-03-07T00:00:00", "Sun 2026-03-08 00:00 +0000"),
        ("0 0 * * sun-sun", "2026-03-01T00:00:00", "Sun 2026-03-08 00:00 +0000"),
        ("0 12 * FEB,jul *", "2026-03-01T00:00:00", "Wed 2026-07-01 12:00 +0000"),
        ("0 0 31 * *", "2026-03-31T00:00:00", "Sun 2026-05-31 00:00 +0000"),
        ("0 0 29 2 *", "2026-03-01T00:00:00", "Tue 2028-02-29 00:00 +0000"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "Fri 2104-02-29 00:00 +0000"),
        ("0 0 29 2 */7", "2032-03-01T00:00:00", "Sun 2060-02-29 00:00 +0000"),
        ("0 0 */31 1 fri", "2027-01-02T00:00:00", "Fri 2038-01-01 00:00 +0000"),
        ("0 0 13 * fri", "2026-03-13T00:00:00", "Fri 2026-03-20 00:00 +0000"),
        ("0 0 13 * *", "2026-03-13T00:00:00", "Mon 2026-04-13 00:00 +0000"),
        ("0 0 */2 * mon", "2026-03-02T00:00:00", "Mon 2026-03-09 00:00 +0000"),
        ("@hourly", "2026-03-01T10:00:00", "Sun 2026-03-01 11:00 +0000"),
        ("@daily", "2026-03-01T10:00:00", "Mon 2026-03-02 00:00 +0000"),
        ("@midnight", "2026-03-01T10:00:00", "Mon 2026-03-02 00:00 +0000"),
        ("@weekly", "2026-03-01T00:00:00", "Sun 2026-03-08 00:00 +0000"),
        ("@monthly", "2026-03-01T00:00:00", "Wed 2026-04-01 00:00 +0000"),
        ("@yearly", "2026-03-01T00:00:00", "Fri 2027-01-01 00:00 +0000"),
        (" 0   12 * * *  ", "2026-03-01T00:00:00", "Sun 2026-03-01 12:00 +0000"),
        ("every 90s", "2026-03-01T00:00:00", "Sun 2026-03-01 00:01:30 +0000"),
        ("every 5m", "2026-03-01T00:04:59", "Sun 2026-03-01 00:05 +0000"),
        ("every 2h", "2026-03-01T01:00:00", "Sun 2026-03-01 02:00 +0000"),
        ("Every 1d", "2026-03-01T01:00:00", "Mon 2026-03-02 00:00 +0000"),
    ],
)
def test_the_next_time(text: str, after: str, expected: str) -> None:
    """It is the first one after the given moment, which itself does not count."""
    assert run(text, "UTC", after, 1) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * * funday",
        "*/0 * * * *",
        "20-10 * * * *",
        "1,,2 * * * *",
        "*-5 * * * *",
        "-1 * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "@often",
        "every",
        "every 0s",
        "every 5",
        "every 5w",
        "every 367d",
        "every 1000000000s",
        "every -5m",
        "* * * * *" + " " * 300 + "x",
        "٣ * * * *",
    ],
)
def test_what_is_no_schedule_is_refused_with_the_field_named(text: str) -> None:
    """A schedule that is never due is refused too."""
    with pytest.raises(BadRequest) as refused:
        parse(text)
    assert refused.value.field == "schedule" and refused.value.message.startswith("schedule: ")


@pytest.mark.parametrize("zone", ["", "Nowhere/At_All", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 300, "a\0b"])
def test_what_is_no_zone_is_refused_with_the_field_named(zone: str) -> None:
    """This does not depend on the zone files."""
    with pytest.raises(BadRequest) as refused:
        next_ms(parse("@daily"), zone, 0)
    assert refused.value.field == "zone"


# --- changes of clocks ----------------------------------------------------------------


def test_a_time_that_is_left_out_falls_due_at_the_first_moment_behind_the_gap() -> None:
    """2:30 does not exist on the day on which 2:00 becomes 3:00."""
    assert run("30 2 * * *", BERLIN, "2026-03-28T02:30:00", 3) == [
        "Sun 2026-03-29 03:00 +0200",
        "Mon 2026-03-30 02:30 +0200",
        "Tue 2026-03-31 02:30 +0200",
    ]
    assert run("30 2 * * *", NEW_YORK, "2026-03-08T00:00:00", 1) == ["Sun 2026-03-08 03:00 -0400"]


def test_several_times_in_one_gap_fall_due_once() -> None:
    """If another time is due after the gap anyway, they are due together."""
    assert run("0,20,40 2-3 * * *", BERLIN, "2026-03-29T00:00:00", 4) == [
        "Sun 2026-03-29 03:00 +0200",
        "Sun 2026-03-29 03:20 +0200",
        "Sun 2026-03-29 03:40 +0200",
        "Mon 2026-03-30 02:00 +0200",
    ]


def test_a_time_that_comes_twice_falls_due_once() -> None:
    """It is due the first time, also if the question is asked between the two."""
    assert run("30 2 * * *", BERLIN, "2026-10-24T12:00:00", 2) == [
        "Sun 2026-10-25 02:30 +0200",
        "Mon 2026-10-26 02:30 +0100",
    ]
    between_ms = at("2026-10-25T02:30:00", BERLIN) + 1_800_000
    assert shown(next_ms(parse("30 2 * * *"), BERLIN, between_ms), BERLIN) == "Mon 2026-10-26 02:30 +0100"


def test_a_schedule_of_every_hour_goes_by_the_hours_that_pass() -> None:
    """It neither pauses nor runs faster when clocks are changed."""
    for after in ("2026-10-24T22:00:00", "2026-03-28T22:00:00"):
        start_ms = at(after, BERLIN)
        found = list(itertools.islice(times(parse("*/20 * * * *"), BERLIN, start_ms), 40))
        assert found == [start_ms + 1_200_000 * count for count in range(1, 41)]


def test_half_an_hour_and_a_whole_day_can_be_left_out_too() -> None:
    """Lord Howe changes by 30 minutes; Samoa left out the 30th of December 2011."""
    assert run("15 2 * * *", LORD_HOWE, "2026-10-03T12:00:00", 2) == [
        "Sun 2026-10-04 02:30 +1100",
        "Mon 2026-10-05 02:15 +1100",
    ]
    assert run("0 12 * * *", APIA, "2011-12-29T12:00:00", 2) == [
        "Sat 2011-12-31 00:00 +1400",
        "Sat 2011-12-31 12:00 +1400",
    ]


def test_intervals_know_no_zone() -> None:
    """Intervals count from the epoch."""
    found = list(itertools.islice(times(parse("every 1h"), BERLIN, at("2026-10-24T23:30:00", BERLIN)), 6))
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {3_600_000}
    assert not any(time_ms % 3_600_000 for time_ms in found)


def test_behind_the_end_of_the_calendar_nothing_falls_due() -> None:
    """There is no error."""
    assert next_ms(parse("@daily"), "UTC", at("9999-12-31T12:00:00")) == NEVER_MS
    assert next_ms(parse("@daily"), BERLIN, NEVER_MS) == next_ms(parse("every 1d"), "UTC", NEVER_MS) == NEVER_MS


# --- properties --------------------------------------------------------------------------

ZONES = ("UTC", BERLIN, NEW_YORK, LORD_HOWE, APIA, "Asia/Kolkata", "Africa/Casablanca")
FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/7", "1-50/9", "0,59"]),
    st.sampled_from(["*", "2", "0,1,2,3", "*/5", "23", "1-3"]),
    st.sampled_from(["*", "1", "28-31", "*/3"]),
    st.sampled_from(["*", "3", "mar,oct", "*/2"]),
    st.sampled_from(["*", "sun", "mon-fri", "6"]),
)
MOMENTS = st.integers(at("2005-01-01T00:00:00"), at("2035-01-01T00:00:00"))


@settings(max_examples=60, deadline=None)
@given(FIELDS.map(" ".join), st.sampled_from(ZONES), MOMENTS)
def test_times_rise_and_do_not_depend_on_where_one_starts(text: str, zone: str, after_ms: int) -> None:
    """The next time after any moment between two times is the later one."""
    schedule = parse(text)
    found = list(itertools.islice(times(schedule, zone, after_ms), 8))
    assert found == sorted(set(found)) and found[0] > after_ms
    for earlier, later in itertools.pairwise(found):
        for between_ms in (earlier, (earlier + later) // 2, later - 1):
            assert next_ms(schedule, zone, between_ms) == later


@settings(max_examples=150, deadline=None)
@given(FIELDS.map(" ".join), st.sampled_from(ZONES), MOMENTS)
def test_a_time_shows_what_the_schedule_says_or_ends_a_gap(text: str, zone: str, after_ms: int) -> None:
    """This is checked on clocks of the zone."""
    schedule = parse(text)
    moment_ms = next_ms(schedule, zone, after_ms)
    clock = datetime.datetime.fromtimestamp(moment_ms / 1000, zoneinfo.ZoneInfo(zone))
    before = datetime.datetime.fromtimestamp((moment_ms - 1) / 1000, zoneinfo.ZoneInfo(zone))
    fits = clock.hour in schedule.hours and clock.minute in schedule.minutes and schedule.falls_on(clock.date())
    assert fits or clock.utcoffset() > before.utcoffset()  # type: ignore[operator]
    assert not moment_ms % 1_000


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(FIELDS.map(" ".join), st.sampled_from(["every 7s", "every 90s", "every 3h"])),
    st.sampled_from(ZONES),
    MOMENTS,
    st.integers(0, 5 * 86_400_000),
    st.integers(1, 20),
)
def test_the_last_times_are_the_end_of_all(text: str, zone: str, after_ms: int, long_ms: int, most: int) -> None:
    """This holds for any number of times."""
    schedule = parse(text)
    first_ms = next_ms(schedule, zone, after_ms)
    until_ms = first_ms + long_ms
    every = [first_ms]
    for time_ms in times(schedule, zone, first_ms):
        if time_ms > until_ms:
            break
        every.append(time_ms)
    assert last(schedule, zone, first_ms, until_ms, most) == every[-most:]


def test_the_last_times_of_a_long_while_are_found_soon() -> None:
    """A year without a leader, with half a million minutes or thirty million seconds, is not walked step by step."""
    first_ms, until_ms = at("2025-01-01T00:00:00"), at("2026-01-01T00:00:00")
    began = time.process_time()
    for text, step_ms in (("* * * * *", 60_000), ("every 1s", 1_000)):
        found = last(parse(text), BERLIN, first_ms, until_ms, 1_000)
        assert found == list(range(until_ms - 999 * step_ms, until_ms + 1, step_ms))
    assert time.process_time() - began < 2
