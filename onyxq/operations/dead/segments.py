"""Dead letters of jobs for clients: they are listed, counted and sent again (`onyxq.jobs.letters`).

A letter that is sent again moves to another queue: it is enqueued there under its own id as the unique key, and then
cancelled. So a request that was interrupted between the two may be repeated: the letter is there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count

from msgspec import structs

from onyxq.core import facts
from onyxq.core.errors import Conflict, NotFound, from_map
from onyxq.core.ids import IdMaker, TaskId
from onyxq.jobs import letters
from onyxq.jobs.letters import Letter, letter_in
from onyxq.jobs.model import Job
from onyxq.jobs.values import pack
from onyxq.node.node import Node
from onyxq.operations.checks.runs import check_id
from onyxq.operations.enqueues import Enqueueing
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.jobs import Jobs
from onyxq.operations.table.enqueue import Enqueue, NewRun
from onyxq.operations.table.job import (
    LETTERS_MAX,
    LIST_LETTERS,
    REQUEUE_LETTERS,
    LetterCount,
    Letters,
    LetterView,
    ListLetters,
    RequeuedLetters,
    RequeueLetters,
)
from onyxq.operations.table.task import CancelTasks, GetTask, ItemResults, ListTasks, TaskView
from onyxq.operations.task_lists import Listing
from onyxq.operations.task_reads import Reading, partitions_of

PAGE = 500
"""Letters that are read, or moved, together."""
CLOCKS_MS = 60_000
"""More than the clocks of peers and of the log may differ, in milliseconds."""

Found = tuple[TaskView, Letter]


class JobLetters:
    """Serves ``job.letters`` and ``job.requeue`` of one node."""

    def __init__(
        self,
        node: Node,
        jobs: Jobs,
        reading: Reading,
        listing: Listing,
        enqueueing: Enqueueing,
        *,
        cancel: Callable[[CancelTasks], Awaitable[ItemResults]],
        ids: IdMaker,
    ) -> None:
        self._node = node
        self._jobs = jobs
        self._reading = reading
        self._listing = listing
        self._enqueueing = enqueueing
        self._cancel = cancel
        self._ids = ids

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(served(LIST_LETTERS, self.page), served(REQUEUE_LETTERS, self.requeue))

    # --- looking

    async def page(self, args: ListLetters) -> Letters:
        """Return letters of a job; raises `NotFound` for one that has none and is not known."""
        if args.letter is not None:
            return Letters(letters=[_view(*await self._one(args.id, args.letter))], counts=[], after=None)
        if args.count:
            return await self._counts(args)
        found, after = await self._page(args, args.after, args.limit)
        if not found and after is None:
            await self._jobs.known(args.id)
        return Letters(letters=[_view(*one) for one in found], counts=[], after=after)

    async def _one(self, job: str, letter: TaskId) -> Found:
        check_id(letter, partitions_of(self._node), "letter")
        task = None
        with suppress(NotFound):
            task = await self._reading.get(GetTask(id=letter))
        if task is None or task.queue != letters.queue_of(job) or task.state != "ready":
            raise NotFound(f"job {job} has no dead letter {letter.hex()}", field="letter")
        return task, letter_in(task.data)

    async def _counts(self, args: ListLetters) -> Letters:
        counts: Counter[tuple[str, str]] = Counter()

        async def add(found: Sequence[Found]) -> None:
            counts.update((letter.task, letter.error) for _, letter in found)

        _, after = await self._each(args, args.after, LETTERS_MAX, add)
        if not counts and after is None:
            await self._jobs.known(args.id)
        shown = [LetterCount(task=task, error=error, count=number) for (task, error), number in sorted(counts.items())]
        return Letters(letters=[], counts=shown, after=after)

    async def _each(
        self,
        args: ListLetters | RequeueLetters,
        after: TaskId | None,
        most: int,
        take: Callable[[Sequence[Found]], Awaitable[None]],
    ) -> tuple[int, TaskId | None]:
        """Pass up to ``most`` letters on, page by page.

        Return their number, and the id after which there may be more.
        """
        left = most
        while left > 0:
            found, after = await self._page(args, after, min(PAGE, left))
            await take(found)
            left -= len(found)
            if after is None:
                break
        return most - left, after

    async def _page(
        self, args: ListLetters | RequeueLetters, after: TaskId | None, limit: int
    ) -> tuple[list[Found], TaskId | None]:
        newest_first = isinstance(args, ListLetters) and args.newest_first
        page = await self._listing.page(
            ListTasks(
                queue=letters.queue_of(args.id), state="ready", after=after, limit=limit, newest_first=newest_first
            )
        )
        found = ((task, letter_in(task.data)) for task in page.tasks)
        return [one for one in found if _fits(one[1], args)], page.after

    # --- sending again

    async def requeue(self, args: RequeueLetters) -> RequeuedLetters:
        """Move letters to the queue of those that are sent again, and start a job that reads this queue.

        Raises `NotFound`, `Conflict` if only the outcome of the job is known or the new job has ended, and what
        submitting a job raises.
        """
        old, known = await self._jobs.definition(args.id)
        before_ms = known.submitted_ms + CLOCKS_MS
        if args.new_id is not None and self._jobs.has_ended(args.new_id):
            raise Conflict(f"job {args.new_id} has ended already", field="new_id", hint="Choose another id.")
        queue = letters.again_queue_of(old)
        if args.new_id is not None:
            self._jobs.check_new(letters.requeued(old, id=args.new_id))
        await self._check_waiting(old, ListTasks(queue=queue, state="ready", until_ms=before_ms, limit=PAGE))

        async def move(found: Sequence[Found]) -> None:
            _check(found, old)
            await self._move(found, queue)

        moved, after = await self._each(args, None, args.limit, move)
        name = await self._name(old, queue)
        if name is None:
            return RequeuedLetters(id=None, count=moved, more=after is not None)
        job = letters.requeued(old, id=args.new_id or name)
        await self._jobs.start(job, keep_ms=args.keep_ms, sealed=letters.streams_of(job))
        return RequeuedLetters(id=job.id, count=moved, more=after is not None)

    async def _check_waiting(self, old: Job, wanted: ListTasks) -> None:
        """Raise `Conflict` if letters wait in the queue that were sent for an earlier job of this id, and do not fit.

        ``wanted``: the first page of the letters that were sent before this job was submitted.
        """
        after: TaskId | None = None
        while True:
            page = await self._listing.page(structs.replace(wanted, after=after))
            _check([(task, letter_in(task.data)) for task in page.tasks], old)
            if (after := page.after) is None:
                return

    async def _move(self, found: Sequence[Found], queue: str) -> None:
        """Move letters; those that another request has moved stay where they are.

        A letter that the other queue has not got stays in the list. Raises the first error.
        """
        if not found:
            return
        acks = await self._enqueueing.in_waves(Enqueue(runs=[self._run(task, queue) for task, _ in found]))
        sent = [task.id for (task, _), ack in zip(found, acks, strict=True) if not isinstance(ack, dict)]
        results = (await self._cancel(CancelTasks(ids=sent))).results if sent else []
        for one in (*acks, *results):
            if isinstance(one, dict):
                raise from_map(one)

    def _run(self, task: TaskView, queue: str) -> NewRun:
        key = task.id.hex()
        first = self._ids.run(facts.partition_of_keys(queue, key, partitions_of(self._node)), 1).first
        header = {"queue": queue, "unique_key": key, "unique_until": "purged"}
        return NewRun(first, facts.pack_task(header, [task.data]))

    async def _name(self, old: Job, queue: str) -> str | None:
        """Return the id of the job that reads what waits in the queue, started before or not; None: nothing waits."""
        page = await self._listing.page(ListTasks(queue=queue, state="ready", limit=1, newest_first=True))
        if not page.tasks:
            return None
        names = (letters.id_of(old.id, page.tasks[0].id, number) for number in count())
        return next(name for name in names if not self._jobs.has_ended(name))


def _check(found: Sequence[Found], job: Job) -> None:
    """Raise `Conflict` for a letter that the job cannot process."""
    for task, letter in found:
        if not letters.fits(letter, job):
            raise Conflict(
                f"dead letter {task.id.hex()} is of task {letter.task!r} of another job that had the id {job.id}",
                field="task",
                hint="Cancel it: onyxq task cancel ID. If it was not sent yet, you can also name the tasks to send.",
            )


def _fits(letter: Letter, args: ListLetters | RequeueLetters) -> bool:
    return args.task in (None, letter.task) and (args.error is None or letter.says(args.error))


def _view(task: TaskView, letter: Letter) -> LetterView:
    return LetterView(
        id=task.id,
        job=letter.job,
        batch=letter.batch,
        task=letter.task,
        error=letter.error,
        message=letter.message,
        traceback=letter.traceback,
        attempt=letter.attempt,
        at_ms=task.created_ms,
        window=letter.window,
        time_ms=letter.time_ms,
        watermark_ms=letter.watermark_ms,
        segment=letter.shown,
        packed=pack(letter.segment),
    )
