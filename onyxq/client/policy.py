"""Options of tasks beside their payload: priority, due time, retries, ordering and dependencies.

The header of a run holds only the options that differ from the defaults (design: runs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypedDict, cast, get_args

from onyxq.client.values import as_id, wrong
from onyxq.core.errors import BadRequest
from onyxq.core.limits import (
    BACKOFF_MS_MAX,
    DEPENDS_MAX,
    NAME_CHARACTERS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETRIES_MAX,
    TIME_MS_MAX,
    UNIQUE_PERIOD_MS_MAX,
    Fate,
    Format,
    OnConflict,
    UniqueUntil,
)
from onyxq.core.queue_settings import check_writable
from onyxq.system.durations import Milliseconds, Moment, Seconds, as_milliseconds, as_moment_ms, as_seconds
from onyxq.system.tracing import check_traceparent

FATES = get_args(Fate)
UNIQUE_OPTIONS = ("unique_until", "unique_period", "on_conflict")
_FIELDS = {"unique_period": "unique_period_ms"}


class OfQueue(Enum):
    """The setting of the task's queue, for options in which None already has a meaning."""

    OF_QUEUE = "as the queue says"

    def __repr__(self) -> str:
        return self.name


OF_QUEUE: Final = OfQueue.OF_QUEUE
Retries = int | None | OfQueue
Callback = str | Mapping[str, str]


class TaskOptions(TypedDict, total=False):
    """Options of every call that makes tasks; `EnqueueOptions` explains them."""

    priority: int
    delay: Seconds | None
    delay_ms: Milliseconds
    at_ms: Moment | None
    expires_ms: Moment | None
    retries: Retries
    backoff_ms: Milliseconds | None
    depends: Iterable[bytes | str]
    on_dependency_failed: Fate
    callback: Callback | None


class UniqueOptions(TypedDict, total=False):
    """Options of a task's unique key; `EnqueueOptions` explains them."""

    unique_until: UniqueUntil | None
    unique_period: Seconds | None
    on_conflict: OnConflict | None


class EnqueueOptions(TaskOptions, UniqueOptions, total=False):
    """Options of a task with a payload from the caller.

    - ``priority``: higher ones are claimed first.
    - ``delay``: the task is due after this time, in seconds, as a `timedelta` or as text such as ``"10s"``.
    - ``delay_ms``: the same as ``delay``, but a number counts milliseconds.
    - ``at_ms``: the task is due at this time, in milliseconds since the epoch, or a `datetime` with a time zone. The
      clocks of the cluster decide, not this machine's. A time further in the past than the queue's ``grace_ms`` is
      refused.
    - ``expires_ms``: the task fails if it has not started by this time, which is given as for ``at_ms``.
    - ``retries``: failed attempts allowed beyond the first; None for no limit. Default: the queue's setting.
    - ``backoff_ms``: pause before the first retry in milliseconds, doubled for each further one. Default: the
      queue's setting.
    - ``depends``: ids of tasks that must finish before this one can start.
    - ``on_dependency_failed``: what happens if one of them fails or is cancelled: ``fail``, ``cancel`` or ``run``.
    - ``callback``: where the end of the task is reported, once: a URL, to which it is posted, or a map with
      ``transport``, ``uri`` and ``method``.
    - ``format``: the kind of the payload, ``bytes`` or ``json``.
    - ``unique_until``: when the unique key is free again: ``started`` (an attempt of its task began), ``finished``
      (the task ended) or ``purged``. Default: ``finished``, with ``unique_period`` ``purged``.
    - ``unique_period``: one task per unique key and period of this length in seconds, counted from the epoch.
    - ``on_conflict``: what happens if another task holds the unique key. ``keep``: nothing. ``replace``: that task
      gets the new payload, priority and due time. ``extend``: it gets the new due time. A task that has started
      stays as it is. ``refuse``: raise `KeyTaken`. Default: ``replace``.
    """

    format: Format


class StepOptions(TaskOptions, total=False):
    """Options of a task that is not sent yet."""

    format: Format
    ordering_key: str | None
    trace: str | None


class GatheredOptions(StepOptions, UniqueOptions, total=False):
    """Options of a task that a transaction enqueues."""

    unique_key: str | None


class Policy(NamedTuple):
    """The options that tasks enqueued together share."""

    queue: str
    priority: int = 0
    retries: Retries = OF_QUEUE
    backoff_ms: int | None = None
    format: Format = "bytes"
    w: int | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    depends: Sequence[bytes | str] = ()
    on_dependency_failed: Fate = "fail"
    expires_ms: int | None = None
    callback: tuple[tuple[str, str], ...] | None = None
    """The members of the callback and their values."""
    trace: str | None = None
    """W3C ``traceparent`` of the span that enqueues the tasks."""
    unique_until: UniqueUntil | None = None
    unique_period_ms: int | None = None
    on_conflict: OnConflict | None = None

    def header(self) -> dict[str, Any]:
        """Return the header of the tasks' runs: the options that differ from the defaults, sorted by name."""
        said = {name: value for name, default in _HEADER if (value := getattr(self, name)) != default}
        if "depends" in said:
            said["depends"] = [as_id(one) for one in self.depends]
            if not self.depends:
                del said["depends"]
        if self.callback is not None:
            said["callback"] = dict(self.callback)
        said["queue"] = self.queue
        return dict(sorted(said.items()))

    @staticmethod
    def of(queue: str, options: Mapping[str, Any]) -> tuple[Policy, When]:
        """Return the policy and the due time from options whose names are known; raise `BadRequest` for bad values."""
        said = dict(options)
        if "depends" in said:
            said["depends"] = tuple_of(said["depends"])
        if said.get("callback") is not None:
            said["callback"] = _callback(said["callback"])
        if "backoff_ms" in said:
            said["backoff_ms"] = as_milliseconds(said["backoff_ms"], "backoff_ms")
        if (period := said.pop("unique_period", None)) is not None:
            said["unique_period_ms"] = _period_ms(period)
        if said.get("expires_ms") is not None:
            said["expires_ms"] = as_moment_ms(said["expires_ms"], "expires_ms")
        when = When.of(said.pop("delay_ms", 0), said.pop("at_ms", None), said.pop("delay", None))
        return Policy(queue, **said), when

    @property
    def is_single(self) -> bool:
        """Whether each task is a run of its own."""
        return self.key is not None or self.callback is not None

    @property
    def key(self) -> str | None:
        """The key that decides the partition; None for none."""
        return self.unique_key if self.ordering_key is None else self.ordering_key

    def check(self, *, own: bool = False) -> None:
        """Raise `BadRequest` for options that no server would accept.

        ``own``: whether the queue may be one of OnyxQ's own.
        """
        queue, priority, retries, backoff_ms, form, _, *relations = self
        _check_name(queue, "queue")
        if not own:
            check_writable(queue, "queue")
        if type(priority) is not int or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
            raise wrong("priority", f"a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}", priority)
        limited = retries is not OF_QUEUE and retries is not None
        if limited and (type(retries) is not int or not 0 <= retries <= RETRIES_MAX):
            raise wrong("retries", f"a whole number from 0 to {RETRIES_MAX}, or None for no limit", retries)
        if backoff_ms is not None and (type(backoff_ms) is not int or not 0 <= backoff_ms <= BACKOFF_MS_MAX):
            raise wrong("backoff_ms", f"a whole number of milliseconds from 0 to {BACKOFF_MS_MAX}", backoff_ms)
        if form not in get_args(Format):
            raise wrong("format", "bytes or json", form)
        if relations != _NONE:
            self._check_relations()

    def _check_relations(self) -> None:
        for name in ("ordering_key", "unique_key"):
            if getattr(self, name) is not None:
                _check_name(getattr(self, name), name)
        self._check_unique()
        if isinstance(self.depends, (str, bytes)):
            raise wrong("depends", "a list of ids", self.depends)
        if len(set(map(_dependency, self.depends))) != len(self.depends) or len(self.depends) > DEPENDS_MAX:
            raise BadRequest(f"depends must name at most {DEPENDS_MAX} tasks, each once", field="depends")
        if self.on_dependency_failed not in FATES:
            raise wrong("on_dependency_failed", f"one of {', '.join(FATES)}", self.on_dependency_failed)
        if self.expires_ms is not None and (type(self.expires_ms) is not int or not 0 < self.expires_ms <= TIME_MS_MAX):
            raise wrong("expires_ms", "a time in milliseconds since the epoch", self.expires_ms)
        if self.trace is not None:
            check_traceparent(self.trace)

    def _check_unique(self) -> None:
        """Raise `BadRequest` for bad options of the unique key, and for such options without a key."""
        for name, values in (("unique_until", get_args(UniqueUntil)), ("on_conflict", get_args(OnConflict))):
            if (value := getattr(self, name)) not in (None, *values):
                raise wrong(name, f"one of {', '.join(values)}", value)
        for name in UNIQUE_OPTIONS:
            if self.unique_key is None and getattr(self, _FIELDS.get(name, name)) is not None:
                raise BadRequest(f"{name} needs a unique_key", field=name)


DEFAULTS: dict[str, Any] = {name: value for name, value in Policy._field_defaults.items() if name != "w"}
_HEADER = tuple(sorted(DEFAULTS.items()))
_NONE = list(Policy("")[6:])


def _callback(callback: Callback) -> tuple[tuple[str, str], ...]:
    """Return the members of a callback; raise `BadRequest` unless it is a URL or a map of texts."""
    if isinstance(callback, str):
        callback = {"transport": "http", "uri": callback, "method": "POST"}
    if not isinstance(callback, Mapping) or not all(isinstance(one, str) for one in (*callback, *callback.values())):
        raise BadRequest("callback is a URL, or a map with transport, uri and method", field="callback")
    return tuple(sorted(callback.items()))


def _period_ms(period: Seconds) -> int:
    """Return a period in milliseconds; raise `BadRequest` for a bad one."""
    seconds = as_seconds(period, "unique_period")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise wrong("unique_period", "a number of seconds, a timedelta or text such as 10m", period)
    if not 1 <= seconds * 1000 <= UNIQUE_PERIOD_MS_MAX:
        raise wrong("unique_period", "1 ms to 366 days", period)
    return round(seconds * 1000)


def tuple_of(depends: Iterable[bytes | str]) -> tuple[bytes | str, ...]:
    """Return the ids to depend on as a tuple; raise `BadRequest` for a single id."""
    if isinstance(depends, (str, bytes)):
        raise wrong("depends", "a list of ids", depends)
    return tuple(depends)


def with_keys(
    policy: Policy, count: int, ordering_key: str | Sequence[str] | None, unique_key: str | Sequence[str] | None
) -> list[Policy]:
    """Return one policy per task, with keys given once for all tasks or one each; raise `BadRequest` otherwise."""
    if unique_key is not None and count > 1 and not _several(unique_key):
        raise BadRequest(f"{count} tasks cannot share a unique key: give a list of {count} keys", field="unique_key")
    ordering = _each(ordering_key, count, "ordering_key")
    unique = _each(unique_key, count, "unique_key")
    return [policy._replace(ordering_key=o, unique_key=u) for o, u in zip(ordering, unique, strict=True)]


def _several(key: Any) -> bool:
    return isinstance(key, Sequence) and not isinstance(key, (str, bytes))


def _each(key: str | Sequence[str] | None, count: int, field: str) -> list[Any]:
    if key is None or not _several(key):
        return [key] * count
    if len(key) != count:
        raise BadRequest(f"{len(key)} keys for {count} payloads", field=field)
    return list(key)


def _check_name(value: Any, field: str) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= NAME_CHARACTERS_MAX:
        raise wrong(field, f"a text of 1 to {NAME_CHARACTERS_MAX} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{field} contains half of a surrogate pair, which is not a character", field=field) from None


def _dependency(value: Any) -> bytes:
    try:
        return as_id(value)
    except BadRequest as error:
        raise BadRequest(error.message, field="depends") from None


class When(NamedTuple):
    """Due time of tasks: after a delay in milliseconds, or at a time in milliseconds since the epoch."""

    delay_ms: int = 0
    at_ms: int | None = None

    @staticmethod
    def of(delay_ms: Milliseconds, at_ms: Moment | None, delay: Seconds | None = None) -> When:
        """Return the due time; raise `BadRequest` for a bad or negative value, or if two are given."""
        if delay is not None:
            if delay_ms:
                raise BadRequest("delay and delay_ms exclude each other", field="delay")
            delay_ms = _delay_ms(delay)
        delay_ms = as_milliseconds(delay_ms, "delay_ms")
        if type(delay_ms) is not int or delay_ms < 0:
            raise wrong("delay_ms", "a whole number of milliseconds, 0 or more", delay_ms)
        if at_ms is not None:
            at_ms = as_moment_ms(at_ms, "at_ms")
        if at_ms is None:
            return When(delay_ms) if delay_ms else NOW
        if delay_ms:
            raise BadRequest("delay_ms and at_ms exclude each other", field="delay_ms")
        if type(at_ms) is not int or not 0 <= at_ms <= TIME_MS_MAX:
            raise wrong("at_ms", "a time in milliseconds since the epoch", at_ms)
        return When(0, at_ms)

    def due_ms(self, now_ms: int) -> int:
        """Return the due time in milliseconds since the epoch, if it is ``now_ms`` now."""
        return now_ms + self.delay_ms if self.at_ms is None else self.at_ms


def _delay_ms(delay: Seconds) -> int:
    """Return a delay in milliseconds; raise `BadRequest` for a bad one."""
    seconds = as_seconds(delay, "delay")
    if type(seconds) not in (int, float) or not 0 <= seconds <= TIME_MS_MAX / 1000:
        raise wrong("delay", "0 or more seconds, a timedelta or text such as 10s", delay)
    return round(seconds * 1000)


NOW = When()
_ALL = {**DEFAULTS, **When._field_defaults, "unique_period": None, "delay": None}
ENQUEUE_DEFAULTS = cast(EnqueueOptions, {name: _ALL[name] for name in EnqueueOptions.__annotations__})
