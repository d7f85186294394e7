"""Rows of completions: how a leader writes adjacent ones as one fact, and which of several counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Row
from onyxq.core.ids import Run, TaskId, ids_of, mask_of, offset_of, runs_of, stretch_of
from onyxq.core.replica import ClaimPiece
from onyxq.leader.state.view import Index


class Finish(NamedTuple):
    """A completion or dead letter to write for a run of tasks."""

    run: Run
    token: int
    outcome: int
    results: list[bytes | None]
    rows: Sequence[Row] | None = None
    """For tasks that are already finished: their existing rows, written again instead of new ones."""


def token_now(store: Index, task_id: TaskId, position: int) -> int:
    """Return the token of a completion without a claim, at a leader that has read the log up to ``position``.

    It is newer than every grant known to this leader and older than any grant of a later leader. It also counts
    for a task that was requeued or granted later, even if the leader knows of that only from another node's
    store.
    """
    return max(0, position, store.counts_from(task_id))


def merged(finishes: Iterable[Finish]) -> list[Finish]:
    """Join adjacent finishes with the same token and outcome, so that they become one fact."""
    out: list[Finish] = []
    for finish in sorted(finishes, key=lambda one: (one.run.first, one.token)):
        if out:
            last = out[-1]
            follows = (
                stretch_of(last.run.first) == stretch_of(finish.run.first)
                and offset_of(last.run.first) + last.run.count == offset_of(finish.run.first)
                and (last.token, last.outcome, bool(last.results))
                == (finish.token, finish.outcome, bool(finish.results))
            )
            if follows:
                out[-1] = last._replace(
                    run=Run(last.run.first, last.run.count + finish.run.count), results=last.results + finish.results
                )
                continue
        out.append(finish)
    return out


def completions_of(store: Index, run: Run) -> list[tuple[TaskId, Completion]]:
    """Return the valid completions of the finished tasks of a run, cut to these tasks."""
    stretch = stretch_of(run.first)
    found = [(first, facts.unpack_completion(body)) for first, body in store.completions(stretch)]
    found.sort(key=lambda one: (one[1].mark, one[1].token, one[0], one[1].count), reverse=True)
    parts = []
    rest = mask_of(*run)
    for first, done in found:
        mine = rest & mask_of(first, done.count)
        rest &= ~mine
        for part in runs_of(stretch, mine):
            parts.append((part.first, done.part(offset_of(part.first) - offset_of(first), part.count)))
    return parts


def has_other_result(store: Index, run: Run, results: list[bytes | None]) -> bool:
    """Return whether a finished task of a run has another result than the given one."""
    given = results or [None] * run.count
    for first, done in completions_of(store, run):
        start = offset_of(first) - offset_of(run.first)
        if given[start : start + done.count] != (done.results or [None] * done.count):
            return True
    return False


def history_of(store: Index, task_id: TaskId) -> list[History]:
    """Return the log's events about a task's claims, in order."""
    return sorted(facts.unpack_history(body) for _, body in store.covering(facts.HISTORY, task_id))


def attempts_of(store: Index, task_id: TaskId) -> tuple[int, int]:
    """Return a task's counted attempts, and how many of them came before it was last requeued."""
    said = history_of(store, task_id)
    attempts = max((one.attempts for one in said if one.event != facts.RELEASED), default=0)
    base = next((one.attempts for one in reversed(said) if one.event == facts.REOPENED), 0)
    return attempts, base


def not_ended_by(store: Index, run: Run, token: int, event: int | None) -> list[Run]:
    """Return the tasks of a run whose claim under ``token`` was not ended by this event.

    A failure may also have ended the claim by a dead letter, unless the task was requeued since.
    """
    if event is None:
        return [run]
    bits = 0
    for task_id in ids_of(*run):
        ended = any((one.token, one.event) == (token, event) for one in history_of(store, task_id))
        dead = event == facts.RETRIED and any(
            done.token == token >= store.counts_from(task_id) and done.outcome in (facts.FAILED, facts.STOPPED)
            for _, done in completions_of(store, Run(task_id, 1))
        )
        if not ended and not dead:
            bits |= mask_of(task_id, 1)
    return list(runs_of(stretch_of(run.first), bits))


def is_overtaken(store: Index, task_id: TaskId, claim: ClaimPiece | None) -> bool:
    """Return whether a worker holds a claim that is newer than the task's completion."""
    if claim is None or not store.finished_bits(stretch_of(task_id)) & mask_of(task_id, 1):
        return False
    done = completions_of(store, Run(task_id, 1))
    return bool(done) and done[0][1].token < claim[2]


def overtaken_bits(store: Index, run: Run, token: int, bits: int) -> int:
    """Return those of ``bits`` for which every completion has an older token than the current claim.

    No leader acknowledged such a completion: otherwise the task would not have been granted again. A deposed
    leader wrote it, and a takeover found it. The completion by the current holder replaces it. If the holder
    does not complete the task, the old completion is void.
    """
    if not bits:
        return 0
    found = [(first, facts.unpack_completion(body)) for first, body in store.completions(stretch_of(run.first))]
    for first, done in found:
        if done.token >= token:
            bits &= ~mask_of(first, done.count)
    return bits
