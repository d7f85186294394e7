"""What a leader writes for completions: decided from the log, the index and the leader's state alone.

`onyxq.leader.completions` waits for what a decision needs, writes the rows and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from onyxq.core import facts
from onyxq.core.errors import AlreadyFinished, SequenceGap
from onyxq.core.facts import Completion, Mark, Row
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, runs_of, stretch_of
from onyxq.core.replica import claimed_bits, pieces_of
from onyxq.leader.completion_rows import Finish, completions_of, has_other_result, merged, overtaken_bits
from onyxq.leader.state.token_rules import valid_tasks
from onyxq.leader.state.view import Index, Refused, View

NextMark = Callable[[], Mark]
"""Returns the mark of a new row."""


class Completed(NamedTuple):
    """Tasks of one stretch that a worker reports as completed."""

    first: TaskId
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    token: int
    seq: int | None
    """Number of updates of the claim, as far as the worker knows; None: it does not matter."""
    results: list[bytes | None] | None


def planned(view: View, item: Completed, next_mark: NextMark) -> tuple[list[Finish], list[Refused]]:
    """Return the completions to write for an item, and its refused parts; raises `SequenceGap`.

    Tasks that this token already completed are written again with their stored rows, unless the result differs.
    """
    first, count, token, _, results = item
    taken, refused = valid_tasks(view, Run(first, count), token)
    _check_sequence(view.store, item)
    stretch = stretch_of(first)

    def results_of(run: Run) -> list[bytes | None]:
        return results[offset_of(run.first) - offset_of(first) :][: run.count] if results else []

    finishes = [Finish(run, token, facts.COMPLETED, results_of(run)) for run in runs_of(stretch, taken)]
    rest = mask_of(first, count) & ~taken
    for part_first, part_count, _ in refused:
        rest &= ~mask_of(part_first, part_count)
    for run in runs_of(stretch, rest):
        if has_other_result(view.store, run, results_of(run)):
            other = AlreadyFinished(f"task {run.first.hex()} was completed with another result")
            refused.append([*run, other.to_map()])
        else:
            finishes.append(Finish(run, token, facts.COMPLETED, [], stored_rows(view.store, run, next_mark())))
    return finishes, refused


def _check_sequence(index: Index, item: Completed) -> None:
    """Raise `SequenceGap` unless the sequence number of a completion follows the claim's last update."""
    if item.seq is None:
        return
    updates = (facts.unpack_update(body) for _, body in index.covering(facts.UPDATE, item.first))
    stored = sum(one.token == item.token and one.seq != facts.REPORT for one in updates)
    if item.count != 1 or item.seq != stored:
        raise SequenceGap(f"the completion's seq must be {stored}, not {item.seq}", field="seq")


def new_rows(finishes: Iterable[Finish], *, at_ms: int, mark: Mark) -> list[Row]:
    """Return the rows of tasks that are finished now."""
    return [
        facts.completion_row(
            finish.run.first,
            Completion(finish.token, finish.run.count, finish.outcome, at_ms, finish.results, mark),
        )
        for finish in merged(finishes)
    ]


def stored_rows(index: Index, run: Run, mark: Mark) -> list[Row]:
    """Return the valid completions of finished tasks as rows with a new mark, to be written again.

    These completions may exist only on this node. They are acknowledged once a majority has them, and they
    win over other rows that an earlier leader left on other nodes.
    """
    return [facts.completion_row(first, done._replace(mark=mark)) for first, done in completions_of(index, run)]


def repeated_cancel(index: Index, task_id: TaskId, next_mark: NextMark) -> Finish | None:
    """Return the cancel of a cancelled task, to be written again; None if the task is not cancelled."""
    run = Run(task_id, 1)
    done = completions_of(index, run)
    if not done or done[0][1].outcome != facts.CANCELLED:
        return None
    return Finish(run, done[0][1].token, facts.CANCELLED, [], stored_rows(index, run, next_mark()))


def unclaimed(view: View, tasks: Sequence[Run]) -> Iterator[Run]:
    """Yield the unclaimed tasks of some runs."""
    for run in tasks:
        stretch, claimed = stretch_of(run.first), claimed_bits(pieces_of(view.replica, run.first))
        yield from runs_of(stretch, mask_of(*run) & ~claimed)


def still_finished(view: View, stretch: TaskId) -> int:
    """Return the finished tasks of a stretch without those that were granted again since: their worker decides."""
    finished = view.store.finished_bits(stretch)
    for offset, count, token, *_ in pieces_of(view.replica, stretch):
        run = Run(id_at(stretch, offset), count)
        finished &= ~overtaken_bits(view.store, run, token, finished & mask_of(*run))
    return finished


def repeated(view: View, runs: Iterable[Run], next_mark: NextMark) -> list[Finish]:
    """Return the completions of finished tasks, to be written again, each with the claim that it ends."""
    return [
        Finish(part, token, facts.COMPLETED, [], stored_rows(view.store, part, next_mark()))
        for run in runs
        for part, token in _claimed_parts(view, run)
    ]


def _claimed_parts(view: View, run: Run) -> list[tuple[Run, int]]:
    """Cut a run where its claims differ; return each part with its token, or -1 if it is unclaimed."""
    stretch = stretch_of(run.first)
    rest = mask_of(*run)
    parts = []
    for offset, count, token, *_ in pieces_of(view.replica, run.first):
        mine = rest & (((1 << count) - 1) << offset)
        parts += [(part, token) for part in runs_of(stretch, mine)]
        rest &= ~mine
    return parts + [(part, -1) for part in runs_of(stretch, rest)]
