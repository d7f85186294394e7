"""Whether a job can begin from a savepoint, found before the job is submitted.

The definition of the savepoint's job is in the replica, however long ago that job ended. So a job that does not fit is
refused here, and its driver does not have to fail.
"""

from __future__ import annotations

from log_entries.begin_savepoint import Savepoint
from onyxq.core.errors import BadRequest
from onyxq.core.jobs.lifetime import COMPLETED, ENDED, end_of
from onyxq.core.replica import Replica
from onyxq.jobs import encoding
from onyxq.jobs.inherited_state import check_fit
from onyxq.jobs.model import Input, Job


def check_begin(replica: Replica, name: str, one: Savepoint | None, job: Job) -> int:
    """Return the position of a savepoint from which a job can begin.

    Raises `BadRequest` for the first reason why it cannot, naming the field.
    """
    if one is None:
        raise BadRequest(
            f"resume names savepoint {name!r}, which does not exist",
            field="resume",
            hint="List all savepoints: onyxq job savepoints.",
        )
    if not one.complete:
        raise BadRequest(
            f"resume names savepoint {name!r}, which is still being made",
            field="resume",
            hint="Repeat the command once onyxq job savepoints lists it as complete.",
        )
    old = encoding.decode(one.body)
    check_fit(old, job, record=one.offsets)
    _check_queues(replica, name, one, old=old, new=job)
    return one.position


def _check_queues(replica: Replica, name: str, one: Savepoint, *, old: Job, new: Job) -> None:
    """Raise `BadRequest` if a queue that the job continues to read may lack tasks of batches after the savepoint.

    Files and topics can be read again. The tasks that a batch has read are completed. So the savepoint's job must have
    ended without a further batch: while it runs, both jobs would claim the tasks of the queue. An ended job commits
    nothing any more, so this stays true until the log has the new job.
    """
    queues = {task.name for task in old.catalog if isinstance(task, Input) and task.queue is not None}
    place, read = next(
        ((at, task) for at, task in enumerate(new.catalog) if isinstance(task, Input) and task.name in queues),
        (0, None),
    )
    if read is None:
        return
    state, batch = _end(replica, one)
    what = f"catalog[{place}].queue is {read.queue!r}, and input {read.name!r} would continue in it: "
    if state not in ENDED:
        raise BadRequest(
            f"{what}job {one.job} is {state}, so both jobs would claim its tasks",
            field=f"catalog[{place}].queue",
            hint=f"Replace the job (--resume {one.job} --replace), or kill it first: onyxq job kill {one.job}. "
            "An input of another name begins with the tasks that the queue has.",
        )
    if batch != one.batch:
        raise BadRequest(
            f"{what}job {one.job} may have read tasks of it after savepoint {name}, and tasks that were read are "
            "completed",
            field=f"catalog[{place}].queue",
            hint="Give the input another name: it then begins with the tasks that the queue has. "
            f"Or resume job {one.job}.",
        )


def _end(replica: Replica, one: Savepoint) -> tuple[str, int | None]:
    """Return the state of a savepoint's job and its last batch; None if the batch is not known any more."""
    job, end = replica.jobs.get(one.job), end_of(replica, one.job)
    if end is None or (job is not None and job.submitted != one.submitted):
        return COMPLETED, None  # The job has ended, and was forgotten or has a successor of the same id.
    return end[0], end[1]
