"""Logs that name the task they are about (design: interfaces).

Every record made while a task runs has ``task_id``, ``task_name``, ``task_queue`` and ``task_attempt``; outside of a
task these are ``-``. ``task_mark`` has them for a line of text, and is empty outside of a task.
"""

from __future__ import annotations

import logging
from typing import Any

from onyxq.worker.attempts import current_attempt

NONE = "-"
FORMAT = "%(asctime)s %(levelname)s %(name)s%(task_mark)s: %(message)s"
_MARK = "_onyxq_contextual"


def contextual_logs() -> None:
    """Add the running task to every log record of this process from now on; may be called again."""
    make = logging.getLogRecordFactory()
    if getattr(make, _MARK, False):
        return

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        made.__dict__.update(about_the_task())
        return made

    setattr(record, _MARK, True)
    logging.setLogRecordFactory(record)


def about_the_task() -> dict[str, Any]:
    """Return the fields of a log record that describe the running task."""
    attempt = current_attempt.get(None)
    if attempt is None:
        return {**dict.fromkeys(("task_id", "task_name", "task_queue", "task_attempt"), NONE), "task_mark": ""}
    claim = attempt.claim
    return {
        "task_mark": f" [{claim.id.hex()} {claim.queue} #{claim.attempts + 1}]",
        "task_id": claim.id.hex(),
        "task_name": attempt.name or NONE,
        "task_queue": claim.queue,
        "task_attempt": claim.attempts + 1,
    }
