"""A job's lifecycles: functions called around work, and the decision after an exception."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from onyxq.jobs import letters
from onyxq.jobs.encoding import decode
from onyxq.jobs.model import Job, Lifecycle
from onyxq.jobs.values import Unfit, pack
from onyxq.spark.failures import TaskFailed, described, of_task
from onyxq.spark.functions import resolve

RESTART, DEFER = "restart", "defer"
POLICIES = ("kill", RESTART, DEFER)


def in_worker(session: Any, body: bytes, version: int, when: str) -> None:
    """Call the functions around the whole job, where its tasks run; ``body`` is the job's bytes."""
    if any(getattr(entry, when) is not None for entry in decode(body).lifecycles):
        session.sparkContext.parallelize([when], 1).foreach(functools.partial(_around_job, body, version))


def _around_job(body: bytes, version: int, when: str) -> None:
    job = decode(body)
    names = tuple(task.name for task in job.catalog)
    called = Lifecycles(job, {"job": job.id, "version": version})
    called.around(when, names)


class Lifecycles:
    """The lifecycles of a job, asked in the job's order.

    ``known`` is passed to each of them.
    """

    def __init__(self, job: Job, known: dict[str, Any]) -> None:
        self._job = job
        self._entries = tuple(enumerate(job.lifecycles))
        self._known = known

    def letter(self, name: str, error: Exception, segment: Any, way: str) -> dict[str, Any]:
        """Return the dead letter of a segment at which a task raised an exception.

        Raises `TaskFailed` if the task has no dead letters, if a lifecycle decides otherwise, or if a segment between
        two functions cannot be kept.
        """
        policy = self._decided(name, error, segment)
        if policy == DEFER and letters.wanted(self._job, name):
            found = letters.failed(task=name, way=way, segment=segment, error=described(error))
            with suppress(Unfit):
                pack(found)
                return found
        raise of_task(error, task=name, segment=segment, restart=policy == RESTART) from error

    def failed(self, name: str, error: Exception, segment: Any) -> TaskFailed:
        """Return what to raise for an exception of a task that no flow condition caught."""
        restart = self._decided(name, error, segment) == RESTART
        return of_task(error, task=name, segment=segment, restart=restart)

    def _decided(self, name: str, error: Exception, segment: Any) -> str:
        """Return the policy of the first entry that does not defer; `DEFER` if all do."""
        said = (self._policy(place, entry, name, error, segment) for place, entry in self._of(name))
        return next((one for one in said if one != DEFER), DEFER)

    def _policy(self, place: int, entry: Lifecycle, name: str, error: Exception, segment: Any) -> str:
        if entry.on_exception in POLICIES:
            return str(entry.on_exception)
        told = {**self._known, "task": name, "exception": error, "segment": segment}
        try:
            said = resolve(entry.on_exception, f"lifecycles[{place}].on_exception")(told)
        except Exception as another:
            raise of_task(another, task=name, segment=segment, restart=False) from error
        if said not in POLICIES:
            wrong = ValueError(f"lifecycles[{place}].on_exception said {said!r}, not one of {', '.join(POLICIES)}")
            raise of_task(wrong, task=name, segment=segment, restart=False) from error
        return str(said)

    def around(self, when: str, names: tuple[str, ...], **known: Any) -> None:
        """Call the functions for before or after the job or a part of a batch; ``when`` is a field of `Lifecycle`."""
        for name in names:
            for place, entry in self._of(name):
                ref = getattr(entry, when)
                if ref is not None:
                    try:
                        resolve(ref, f"lifecycles[{place}].{when}")({**self._known, **known, "task": name})
                    except Exception as error:
                        raise self.failed(name, error, None) from error

    def _of(self, name: str) -> list[tuple[int, Lifecycle]]:
        return [(place, entry) for place, entry in self._entries if entry.task in ("all", name)]
