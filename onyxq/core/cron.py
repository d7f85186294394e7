"""Schedules of periodic tasks: five cron fields in a time zone, or an interval (design: periodic tasks).

`parse` reads a text; `next_ms` and `last` return when it is due.  If a change of clocks skips a
time of day, that time is due at the first moment after the gap.  If a time of day occurs twice, it is
due once, at its first occurrence.  A schedule for every hour counts hours that pass, so
neither change makes it pause or hurry.  Intervals count from the epoch, in UTC.

Zones are read from the system's files (or the package ``tzdata``).  So only the peer that
owes a firing computes these times, and its entry carries them as numbers.
"""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Iterator, Sequence

from attrs import frozen

from onyxq.core.errors import BadRequest
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.core.texts import whole

NEVER_MS = (1 << 62) - 1
"""The next time of a schedule that is not due again before the end of the calendar."""
INTERVAL_MS_MAX = 366 * 86_400_000
YEARS_AHEAD = 41
"""Years to search: a schedule that is ever due is due in this time.

Around 2100, two 29 February of one day of the week are 40 years apart.
"""

_DAY_MS = 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MINUTE, _DAY = datetime.timedelta(minutes=1), datetime.timedelta(days=1)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_WEEKDAYS = "sun mon tue wed thu fri sat".split()
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, tuple(_MONTHS)),
    ("day of week", 0, 7, tuple(_WEEKDAYS)),
)
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": _DAY_MS}
_EVERY = re.compile(r"every\s+([1-9][0-9]{0,8})\s*([smhd])")
_PART = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]+))?")


@frozen
class Schedule:
    """When something is due: every ``every_ms``, or at the times of day that the sorted fields name."""

    every_ms: int = 0
    minutes: tuple[int, ...] = ()
    hours: tuple[int, ...] = ()
    days: tuple[int, ...] = ()
    months: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    """0 is Sunday."""
    either: bool = False
    """Whether both day fields are restricted. Then a day has to fit only one of them, as in cron."""

    @property
    def every_hour(self) -> bool:
        """Whether the schedule includes every hour."""
        return len(self.hours) == 24

    def falls_on(self, day: datetime.date) -> bool:
        """Return whether it is due at some time of a day."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week


# --- reading -------------------------------------------------------------------------


def parse(text: str) -> Schedule:
    """Return the schedule that a text describes; raises `BadRequest` naming the field ``schedule``.

    The text has five fields (minute, hour, day of month, month, day of week) with lists, ranges, steps and
    English names of three letters.  ``@hourly`` and similar names, and ``every 30s``, ``5m``, ``2h``, ``1d``
    are valid too.
    """
    said = " ".join(text.lower().split())
    if not said or len(said) > NAME_CHARACTERS_MAX:
        raise _wrong("it must have five fields, or be such as @daily or every 5m")
    if said.startswith("every"):
        return _interval(said)
    if said.startswith("@"):
        if said not in _NICKNAMES:
            raise _wrong(f"{said[:40]} is not one of {', '.join(_NICKNAMES)}")
        said = _NICKNAMES[said]
    fields = said.split(" ")
    if len(fields) != len(_FIELDS):
        raise _wrong(f"{len(fields)} fields instead of five: minute, hour, day of month, month, day of week")
    minutes, hours, days, months, weekdays = (_field(part, *known) for part, known in zip(fields, _FIELDS, strict=True))
    weekdays = tuple(sorted({day % 7 for day in weekdays}))
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    found = Schedule(minutes=minutes, hours=hours, days=days, months=months, weekdays=weekdays, either=either)
    if not either and all(days[0] > _LONGEST[month - 1] for month in months):
        raise _wrong("it names days that none of its months has: it would never fall due")
    return found


def zone_of(name: str) -> datetime.tzinfo:
    """Return the time zone of an IANA name; raises `BadRequest` naming the field ``zone``."""
    if name == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequest(
            f"zone: {name[:100]!r} is not a known time zone",
            field="zone",
            hint="Give an IANA name such as Europe/Berlin, or UTC.",
        ) from None


def _wrong(what: str) -> BadRequest:
    return BadRequest(
        f"schedule: {what}", field="schedule", hint='Write it as cron does, such as "30 4 * * mon-fri", or "every 5m".'
    )


def _interval(said: str) -> Schedule:
    found = _EVERY.fullmatch(said)
    every_ms = int(found[1]) * _UNITS_MS[found[2]] if found else 0
    if not 0 < every_ms <= INTERVAL_MS_MAX:
        raise _wrong("an interval is written as every 30s, 5m, 2h or 1d, up to 366 days")
    return Schedule(every_ms=every_ms)


def _field(text: str, name: str, low: int, high: int, names: Sequence[str]) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise _wrong(f"{part[:40]!r} is not valid in the field {name}")
        start, end, step = match.groups()
        if start == "*":
            if end is not None:
                raise _wrong(f"{part[:40]!r} is not a range of the field {name}")
            first, last = low, high
        else:
            first = _number(start, name, low, high, names)
            last = _number(end, name, low, high, names) if end else high if step else first
            if end and last == 0 and first > 0 and high == 7:
                last = 7  # Sunday also ends a week
        every = int(step) if step else 1
        if every < 1 or last < first:
            raise _wrong(f"{part[:40]!r} of the field {name} matches nothing")
        found.update(range(first, last + 1, every))
    return tuple(sorted(found))


def _number(text: str, name: str, low: int, high: int, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text) + low
    number = whole(text)
    if number is None or not low <= number <= high:
        raise _wrong(
            f"{text[:40]!r} is not a valid {name}: {low} to {high}"
            + (f" or {names[0]} to {names[-1]}" if names else "")
        )
    return number


# --- times -----------------------------------------------------------------------------


def next_ms(schedule: Schedule, zone: str, after_ms: int) -> int:
    """Return the first time after ``after_ms`` at which it is due, in ms since the epoch, or `NEVER_MS`."""
    return next(times(schedule, zone, after_ms), NEVER_MS)


def times(schedule: Schedule, zone: str, after_ms: int) -> Iterator[int]:
    """Yield the times after ``after_ms`` at which it is due, each once and in order, in ms since the epoch."""
    if schedule.every_ms:
        count = after_ms // schedule.every_ms
        while count < NEVER_MS // schedule.every_ms:
            count += 1
            yield count * schedule.every_ms
        return
    if not 0 <= after_ms < NEVER_MS:
        return
    last = after_ms
    for found in _of_days(schedule, zone_of(zone), after_ms):
        if found > last:
            yield found
            last = found


def last(schedule: Schedule, zone: str, first_ms: int, until_ms: int, most: int) -> list[int]:
    """Return the last ``most`` times up to ``until_ms`` at which it is due, in order.

    ``first_ms`` itself counts as such a time; earlier times are left out.
    """
    if schedule.every_ms:
        start = max(first_ms, (until_ms // schedule.every_ms - most + 1) * schedule.every_ms)
        found = [first_ms] if start == first_ms else []
        count = -(-(start + (start == first_ms)) // schedule.every_ms)
        found += range(count * schedule.every_ms, until_ms + 1, schedule.every_ms)
        return found[-most:]
    back_ms = most * 60_000
    while True:
        start = max(first_ms, until_ms - back_ms)
        found = [first_ms] if start == first_ms else []
        for time_ms in times(schedule, zone, start):
            if time_ms > until_ms:
                break
            found.append(time_ms)
        if len(found) >= most or start == first_ms:
            return found[-most:]
        back_ms *= 8


def _of_days(schedule: Schedule, zone: datetime.tzinfo, after_ms: int) -> Iterator[int]:
    """Yield times as `times` does, but also repeats and some times before ``after_ms``."""
    try:
        start = (_EPOCH + datetime.timedelta(milliseconds=after_ms)).astimezone(zone).replace(tzinfo=None)
        steady = _offset(zone, after_ms) == _offset(zone, after_ms - 2 * _DAY_MS)
        # If a whole day is skipped, its times are due when a later day has already begun.
        start -= _MINUTE if steady else 2 * _DAY
        day = start.date()
        end = _years_after(day)
        while day < end:
            if schedule.falls_on(day):
                yield from _of_day(schedule, zone, day, start)
                end = _years_after(day)
            day += _DAY
    except (OverflowError, ValueError):
        return  # the end of the calendar


def _years_after(day: datetime.date) -> datetime.date:
    """Return the day at which the search from ``day`` ends."""
    return day.replace(year=min(day.year + YEARS_AHEAD, datetime.MAXYEAR), day=min(day.day, 28))


def _of_day(schedule: Schedule, zone: datetime.tzinfo, day: datetime.date, start: datetime.datetime) -> Iterator[int]:
    """Yield the times of a day; times before ``start`` are left out where that is simple."""
    found = []
    hours = schedule.hours
    if start.date() == day:
        hours = tuple(hour for hour in hours if hour >= start.hour)
    for hour in hours:
        clock = datetime.datetime(day.year, day.month, day.day, hour)
        for minute in schedule.minutes:
            found += _moments(clock.replace(minute=minute), zone, twice=schedule.every_hour)
    yield from sorted(found)


def _moments(clock: datetime.datetime, zone: datetime.tzinfo, *, twice: bool) -> list[int]:
    """Return when a zone's clocks show a time, in ms since the epoch.

    For a time in a gap, this is the first moment after the gap.  If a time occurs twice, ``twice`` returns
    both; otherwise only the first is returned.
    """
    first = clock.replace(tzinfo=zone)
    early, late = _ms(first), _ms(first.replace(fold=1))
    if early == late:
        return [early]
    if early < late:  # clocks were set back, so the time occurs twice
        return [early, late] if twice else [early]
    return [_change(zone, late, early)]


def _change(zone: datetime.tzinfo, low_ms: int, high_ms: int) -> int:
    """Return the moment of the single change of clocks between two times, to the second."""
    low, high = low_ms // 1_000, -(-high_ms // 1_000)
    after = _offset(zone, high * 1_000)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _offset(zone, middle * 1_000) == after else (middle, high)
    return high * 1_000


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def _offset(zone: datetime.tzinfo, at_ms: int) -> datetime.timedelta | None:
    return (_EPOCH + datetime.timedelta(milliseconds=at_ms)).astimezone(zone).utcoffset()
