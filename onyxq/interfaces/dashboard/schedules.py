"""Schedules of periodic tasks in words, such as ``Monday to Friday at 03:30``.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from onyxq.core import cron
from onyxq.core.cron import Schedule
from onyxq.core.errors import BadRequest

UNITS_MS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))
MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()
TIMES_MAX = 6
"""Most times of day that are listed."""


def in_words(text: str, zone: str = "UTC") -> str:
    """Return a schedule in words, with its time zone; a schedule that cannot be read here stays as it is."""
    try:
        schedule = cron.parse(text)
    except BadRequest:
        return text
    if schedule.every_ms:
        return _every(schedule.every_ms)
    said = [part for part in (_days(schedule), _months(schedule)) if part]
    times = _times(schedule)
    if times.startswith("every "):
        said = [times, *said]
    else:
        said = [f"{said[0] if said else 'every day'} {times}", *said[1:]]
    is_same_everywhere = schedule.every_hour and len(said) == 1
    return ", ".join(said if zone == "UTC" or is_same_everywhere else [*said, zone])


def _every(ms: int) -> str:
    size, unit = next((size, unit) for size, unit in UNITS_MS if ms % size == 0)
    count = ms // size
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"


def _times(schedule: Schedule) -> str:
    """Return the times of a day: they begin with ``every`` if they are regular, else with ``at``."""
    minutes, hours = schedule.minutes, schedule.hours
    past = _listed([f":{minute:02}" for minute in minutes])
    often = _every(step * 60_000) if (step := _step(minutes, 60)) else f"every hour at {past}"
    if schedule.every_hour:
        return often
    if len(minutes) == 1 < len(hours) and (step := _step(hours, 24)):
        return _every(step * 3_600_000) + (f" at {past}" if minutes[0] else "")
    if len(minutes) * len(hours) <= TIMES_MAX:
        return f"at {_listed([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    if hours == tuple(range(hours[0], hours[-1] + 1)):
        return f"{often} from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    return f"{often} in the hours {_listed([str(hour) for hour in hours])}"


def _step(values: Sequence[int], size: int) -> int:
    """Return the step of values that begin with 0 and divide a whole of that size evenly; 0 if they do not."""
    step = size // len(values)
    return step if tuple(values) == tuple(range(0, size, step)) and size % step == 0 else 0


def _days(schedule: Schedule) -> str:
    of_month = "" if len(schedule.days) == 31 else f"on day {_listed(_spans(schedule.days))} of the month"
    of_week = "" if len(schedule.weekdays) == 7 else _weekdays(schedule.weekdays)
    if of_month and of_week:
        return f"{of_month} {'or' if schedule.either else 'if it is'} {of_week}"
    return of_month or of_week


def _weekdays(days: Sequence[int]) -> str:
    from_monday = sorted((day - 1) % 7 for day in days)
    names = [*WEEKDAYS[1:], WEEKDAYS[0]]
    return _listed(_spans(from_monday, names))


def _months(schedule: Schedule) -> str:
    return "" if len(schedule.months) == 12 else f"in {_listed(_spans([one - 1 for one in schedule.months], MONTHS))}"


def _spans(values: Sequence[int], names: Sequence[str] = ()) -> list[str]:
    """Return values, with three or more consecutive ones as ``first to last``."""
    spans: list[list[int]] = []
    for value in values:
        if spans and value == spans[-1][-1] + 1:
            spans[-1].append(value)
        else:
            spans.append([value])
    shown = [[names[one] if names else str(one) for one in span] for span in spans]
    return [one for span in shown for one in (span if len(span) < 3 else [f"{span[0]} to {span[-1]}"])]


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
