"""Options of functions and workers: how tasks are enqueued and run (design: interfaces)."""

from __future__ import annotations

import inspect
import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

from attrs import evolve, field, fields_dict, frozen

from onyxq.client.policy import (
    OF_QUEUE,
    UNIQUE_OPTIONS,
    Callback,
    Policy,
    Retries,
    TaskOptions,
    UniqueOptions,
    tuple_of,
)
from onyxq.client.values import wrong
from onyxq.core import queue_settings
from onyxq.core.errors import BadRequest
from onyxq.core.limits import LEASE_MS_MAX, LEASE_MS_MIN, Fate, OnConflict, UniqueUntil
from onyxq.operations.table.claim import WAIT_MS_MAX
from onyxq.system.durations import Milliseconds, Seconds, as_milliseconds, as_moment_ms, as_seconds
from onyxq.system.settings import did_you_mean
from onyxq.worker.resources import used_by
from onyxq.worker.retries import Backoff, Kinds, Retrying, pause_ms

Runs: TypeAlias = Literal["thread", "process"]
"""Where a function that is not async runs."""
KEYS = ("ordering_key", "unique_key")
OF_FUNCTION = ("runs", "backoff", "retry_on", "give_up_on", "retry_for_s")
"""Options that workers read from the function, so that a call cannot change them."""
OF_RUNS = ("retries", "backoff_ms", "expires_after_ms")
"""Options of a function that its periodic task carries, so that each run gets them."""
OF_PERIODIC = ("queue", "priority", "timeout_s", *OF_RUNS)
"""Options that hold also for tasks that the cluster enqueues on a schedule, beside those of the function."""
TIMEOUT_S_MAX = 30 * 86_400.0

Key = str | Callable[..., str] | None
"""A key: a template such as ``"customer {customer}"``, or a function of the task's arguments."""


class Changes(TaskOptions, UniqueOptions, total=False):
    """Options that `TaskFunction.options` can change; see `Options`."""

    queue: str
    ordering_key: Key
    unique_key: Key
    expires_after_ms: Milliseconds | None
    w: int | None
    timeout_s: Seconds | None


class FunctionOptions(Changes, total=False):
    """Options of a function that is a task.

    - ``ordering_key``, ``unique_key``: a template such as ``"customer {customer}"``, or a function of the arguments.
    - ``expires_after_ms``: the task fails if it has not started within this time after it is due, in milliseconds.
    - ``timeout_s``: seconds after which an attempt is cancelled and counts as failed.
    - ``runs``: ``"thread"`` or ``"process"``, for functions that are not async.
    - ``backoff``: the pause before each retry, in seconds or as text such as ``"10s"``. Or several pauses, before the
      first and further retries; the last one is repeated. Or a function of the retry's number, from 1, and of the
      error, that returns the pause. Default: as ``backoff_ms`` says.
    - ``retry_on``: exception classes; the task fails for good at the first exception of another class.
    - ``give_up_on``: exception classes at which the task fails for good.
    - ``retry_for_s``: no retry begins later than this many seconds after the task was due.

    The others are as in `AsyncClient.enqueue`.
    """

    runs: Runs | None
    backoff: Backoff
    retry_on: Kinds
    give_up_on: Kinds
    retry_for_s: Seconds | None


class WorkerOptions(TypedDict, total=False):
    """Options of a worker.

    - ``concurrency_max``: largest number of slots; a worker adds slots up to it while all are busy.
    - ``ahead``: largest number of claims held beyond the running ones. Default: ten per slot, and never more than can
      start within half a second. With 0, tasks that are not due yet are not claimed either.
    - ``lease_ms``: how long a claim is valid without renewal, in milliseconds.
    - ``wait_ms``: how long one request waits for tasks, in milliseconds.
    - ``drain_ms``: how long running tasks may continue after `stop`, in milliseconds.
    - ``tasks_per_process``: number of tasks after which a process is replaced by a new one; default: never.
    - ``name``: the worker's name, shown with its claims; default: ``host:pid``.
    """

    concurrency_max: int | None
    ahead: int | None
    lease_ms: Milliseconds
    wait_ms: Milliseconds
    drain_ms: Milliseconds
    tasks_per_process: int | None
    name: str | None


WORKER_DEFAULTS: WorkerOptions = {
    "concurrency_max": None,
    "ahead": None,
    "lease_ms": queue_settings.DEFAULTS.lease_ms,
    "wait_ms": 10_000,
    "drain_ms": 30_000,
    "tasks_per_process": None,
    "name": None,
}

_IN_WAYS = "as text, a timedelta or a number of milliseconds"
_WORKER_NUMBERS: Mapping[str, tuple[int, float, str]] = {
    "concurrency": (1, math.inf, "a whole number from 1"),
    "concurrency_max": (1, math.inf, "None or a whole number from 1"),
    "ahead": (0, math.inf, "None or a whole number from 0"),
    "lease_ms": (LEASE_MS_MIN, LEASE_MS_MAX, f"1s to 24h, {_IN_WAYS}"),
    "wait_ms": (0, WAIT_MS_MAX, f"0s to 10m, {_IN_WAYS}"),
    "drain_ms": (0, math.inf, f"0s or more, {_IN_WAYS}"),
    "tasks_per_process": (1, math.inf, "None or a whole number from 1"),
}
"""Smallest and largest value of each number of a worker, and what it must be, in words."""


def checked(options: WorkerOptions, concurrency: int) -> WorkerOptions:
    """Return the options of a worker, durations in milliseconds; raise `BadRequest` naming a wrong number."""
    said: dict[str, Any] = {**options}
    for name, (least, most, expected) in _WORKER_NUMBERS.items():
        given = value = concurrency if name == "concurrency" else said[name]
        if value is None and expected.startswith("None"):
            continue
        if name.endswith("_ms"):
            value = said[name] = as_milliseconds(given, name)
        if type(value) is not int or not least <= value <= most:
            raise wrong(name, expected, given)
    most_slots = said["concurrency_max"]
    if most_slots is not None and most_slots < concurrency:
        problem = f"concurrency_max must be at least concurrency, {concurrency}, not {most_slots}"
        raise BadRequest(problem, field="concurrency_max")
    return cast(WorkerOptions, said)


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with their durations as numbers; raise `BadRequest` naming a wrong one."""
    said = dict(options)
    if (delay := said.pop("delay", None)) is not None:
        if "delay_ms" in said:
            raise BadRequest("delay and delay_ms exclude each other", field="delay")
        said["delay_ms"] = pause_ms(delay, "delay")
    for name in said.keys() & {"delay_ms", "backoff_ms", "expires_after_ms"}:
        said[name] = as_milliseconds(said[name], name)
    for name in said.keys() & {"at_ms", "expires_ms"}:
        said[name] = None if said[name] is None else as_moment_ms(said[name], name)
    for name in said.keys() & {"timeout_s", "retry_for_s", "unique_period"}:
        said[name] = as_seconds(said[name], name)
    return said


@frozen(kw_only=True)
class Options:
    """Options of a function's tasks; see `AsyncClient.enqueue_many` for those without an explanation here."""

    queue: str = "default"
    priority: int = 0
    delay_ms: int = 0
    at_ms: int | None = None
    retries: Retries = OF_QUEUE
    backoff_ms: int | None = None
    ordering_key: Key = None
    unique_key: Key = None
    unique_until: UniqueUntil | None = None
    unique_period: float | None = None
    on_conflict: OnConflict | None = None
    expires_ms: int | None = None
    expires_after_ms: int | None = None
    """Time after the due time by which the task must have started, in milliseconds."""
    depends: Iterable[bytes | str] = field(default=(), converter=tuple_of)
    on_dependency_failed: Fate = "fail"
    callback: Callback | None = None
    w: int | None = None
    timeout_s: float | None = None
    """Seconds after which an attempt is cancelled and counts as failed."""
    runs: Runs | None = None
    """Where a function that is not async runs: ``thread`` (the default) or ``process``."""
    backoff: Backoff = None
    """Pauses before retries that the worker chooses; see `FunctionOptions`."""
    retry_on: Kinds = None
    give_up_on: Kinds = None
    retry_for_s: float | None = None
    """Longest time from when the task was due to a retry, in seconds."""

    @staticmethod
    def of(options: Mapping[str, Any]) -> Options:
        """Return the options of known names; raise `BadRequest` for an unknown name."""
        for name in options:
            if name not in DEFAULTS:
                raise _unknown(name, "task", list(DEFAULTS))
        return Options(**_numbers(options))

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """Return the options with some changed; raise `BadRequest` for an unknown name."""
        for name in changes:
            if name not in DEFAULTS or name in OF_FUNCTION:
                raise _unknown(name, "call", [one for one in DEFAULTS if one not in OF_FUNCTION])
        return evolve(self, **_numbers(changes))

    @property
    def retrying(self) -> Retrying:
        """The options about retries that a worker follows."""
        return Retrying(
            backoff=self.backoff, retry_on=self.retry_on, give_up_on=self.give_up_on, retry_for_s=self.retry_for_s
        )

    def check(self, function: Callable[..., Any]) -> None:
        """Raise `BadRequest` for options that do not fit the function."""
        if self.runs is not None:
            if self.runs not in get_args(Runs):
                raise wrong("runs", f"one of {', '.join(get_args(Runs))}", self.runs)
            if inspect.iscoroutinefunction(function):
                raise BadRequest("an async function runs in the worker's event loop", field="runs")
        if self.runs == "process" and "<" in function.__qualname__:
            raise BadRequest(f"another process cannot import {function.__qualname__}", field="runs")
        for name, resource in used_by(inspect.signature(function)).items():
            if self.runs == "process" and resource.is_async:
                raise BadRequest(f"argument {name!r} is an async resource, which no process can open", field="runs")
        if self.timeout_s is not None and not 0 < self.timeout_s <= TIMEOUT_S_MAX:
            raise wrong("timeout_s", "a number of seconds above 0, up to 30 days", self.timeout_s)
        if self.expires_after_ms is not None and (type(self.expires_after_ms) is not int or self.expires_after_ms <= 0):
            raise wrong("expires_after_ms", "a whole number of milliseconds above 0", self.expires_after_ms)
        if self.expires_after_ms is not None and self.expires_ms is not None:
            raise BadRequest("expires_ms and expires_after_ms exclude each other", field="expires_after_ms")
        self.retrying.check()
        Policy(self.queue, self.priority, self.retries, self.backoff_ms).check()
        if unique := {name: value for name in UNIQUE_OPTIONS if (value := getattr(self, name)) is not None}:
            Policy.of(self.queue, {**unique, "unique_key": None if self.unique_key is None else "some"})[0].check()
        for name in KEYS:
            _check_template(getattr(self, name), name, function)

    @property
    def of_enqueues(self) -> list[str]:
        """Names of the options given that tasks enqueued on a schedule would not have."""
        plain = Options()
        given = [name for name in fields_dict(Options) if getattr(self, name) != getattr(plain, name)]
        return [name for name in given if name not in OF_FUNCTION and name not in OF_PERIODIC]

    @property
    def of_runs(self) -> dict[str, Any]:
        """Options given that a periodic task carries; the settings of the queue decide the others."""
        return {name: value for name in OF_RUNS if (value := getattr(self, name)) != DEFAULTS[name]}

    @property
    def needs_now(self) -> bool:
        """Whether `arguments` needs the cluster's time."""
        return self.expires_after_ms is not None

    def arguments(self, bound: Callable[[], inspect.BoundArguments], now_ms: int | None) -> dict[str, Any]:
        """Return the keyword arguments of ``enqueue``, except the queue, for a call with the arguments ``bound``."""
        keys = {name: self._key(name, bound) for name in KEYS}
        return self._shared(now_ms) | {name: key for name, key in keys.items() if key is not None}

    def of_calls(self, bound: Sequence[Callable[[], inspect.BoundArguments]], now_ms: int | None) -> dict[str, Any]:
        """Return the keyword arguments of ``enqueue_many`` for several calls; see `arguments`."""
        said = {name: [self._key(name, one) for one in bound] for name in KEYS if getattr(self, name) is not None}
        return self._shared(now_ms) | said

    def _shared(self, now_ms: int | None) -> dict[str, Any]:
        said: dict[str, Any] = {
            "priority": self.priority,
            "delay_ms": self.delay_ms,
            "at_ms": self.at_ms,
            "retries": self.retries,
            "backoff_ms": self.backoff_ms,
            "format": "json",
        }
        if self.depends:
            said["depends"] = self.depends
        if self.on_dependency_failed != DEFAULTS["on_dependency_failed"]:
            # A step of a flow gets its dependencies later.
            said["on_dependency_failed"] = self.on_dependency_failed
        if self.callback is not None:
            said["callback"] = self.callback
        if self.w is not None:
            said["w"] = self.w
        said |= {name: value for name in UNIQUE_OPTIONS if (value := getattr(self, name)) is not None}
        expires_ms = self.expires_ms
        if self.expires_after_ms is not None:
            if now_ms is None:
                raise BadRequest("the cluster's time is not known here: give expires_ms", field="expires_after_ms")
            due_ms = now_ms + self.delay_ms if self.at_ms is None else self.at_ms
            expires_ms = due_ms + self.expires_after_ms
        if expires_ms is not None:
            said["expires_ms"] = expires_ms
        return said

    def _key(self, name: str, bound: Callable[[], inspect.BoundArguments]) -> str | None:
        key: Key = getattr(self, name)
        if key is None or (isinstance(key, str) and "{" not in key):
            return key
        given = bound()
        try:
            made = key.format(**given.arguments) if isinstance(key, str) else key(*given.args, **given.kwargs)
        except Exception as error:
            # The key comes from the user's function or reaches into the user's values, which may raise anything.
            raise BadRequest(f"the {name} cannot be made: {type(error).__name__}: {error}", field=name) from error
        if not isinstance(made, str):
            raise BadRequest(f"the {name} must be a str, not {type(made).__name__}", field=name)
        return made


DEFAULTS: dict[str, Any] = {name: known.default for name, known in fields_dict(Options).items()} | {"delay": None}


def _unknown(name: str, place: str, options: list[str]) -> BadRequest:
    hint = f"The options are {', '.join(options)}. A schedule is a decorator: @app.periodic above @app.task."
    return BadRequest(f"there is no option {name!r} for a {place}{did_you_mean(name, options)}", field=name, hint=hint)


def _check_template(key: Key, name: str, function: Callable[..., Any]) -> None:
    if key is None or callable(key):
        return
    if not isinstance(key, str):
        raise BadRequest(f"{name} is a template or a function, not {type(key).__name__}", field=name)
    try:
        used = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
    except ValueError as error:
        raise BadRequest(f"{name} is not a template: {error}", field=name) from None
    parameters = inspect.signature(function).parameters
    for path in used:
        argument = path.partition(".")[0].partition("[")[0]
        if argument not in parameters:
            raise BadRequest(f"{name} uses {argument!r}, which is not an argument of the function", field=name)
