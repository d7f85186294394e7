"""Task updates: notes of a worker about a task, numbered per claim and stored as facts.

The leader itself stores the report of a failed attempt as an update that has the number `facts.REPORT`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.errors import (
    AlreadyFinished,
    Conflict,
    Corrupt,
    OnyxqError,
    SequenceGap,
    StaleToken,
    TooLarge,
    Unavailable,
    Unknown,
)
from onyxq.core.facts import Report, Row, Update
from onyxq.core.ids import Run, TaskId, ids_of
from onyxq.core.texts import without_middle
from onyxq.history import attempts
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.token_rules import valid_tasks
from onyxq.leader.token_check import TokenCheck, unsure_partitions
from onyxq.operations.table.claim import UpdateTasks
from onyxq.store.store import Store
from onyxq.system.procedures import procedure

UPDATES_BYTES_MAX = 8 * 1024 * 1024
"""Most bytes of data in all updates of a task. They are read in one answer."""

TRACEBACK_BYTES_MAX = 4 * 1024
"""Most bytes of the traceback of an attempt."""
TRACEBACKS_FIRST, TRACEBACKS_MAX = 2, 8
"""Number of tracebacks of a task that are kept, and how many of them are its first; the others are its last."""
REQUEST_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of tracebacks after which a request has no further ones: a run of tasks has one for each task."""

NO_REPORT = Report(given_up=False, traceback="")

log = logging.getLogger(__name__)


def updates_of(store: Store, task_id: TaskId) -> list[Update]:
    """Return the stored updates of a task, of all its claims, without reports."""
    return [one for one in _stored(store, task_id) if one.seq != facts.REPORT]


def reports_of(store: Store, task_id: TaskId) -> dict[int, Report]:
    """Return the stored reports of a task's failed attempts by the tokens of their claims, the first claim first."""
    return attempts.reports_of(_stored(store, task_id))


def _stored(store: Store, task_id: TaskId) -> Iterator[Update]:
    return (facts.unpack_update(body) for _, body in store.covering(facts.UPDATE, task_id))


def check_room(stored: Sequence[Update], more: int, field: str) -> None:
    """Raise `TooLarge` if a task's updates would be too large with ``more`` additional bytes."""
    if sum(len(one.data) for one in stored) + more > UPDATES_BYTES_MAX:
        raise TooLarge(
            f"the updates of a task hold at most {UPDATES_BYTES_MAX} bytes, those of earlier attempts included",
            field=field,
        )


class TaskUpdates:
    """Stores updates of claimed tasks in the partitions that a node leads."""

    def __init__(self, host: OperationsHost, tokens: TokenCheck) -> None:
        self._host = host
        self._tokens = tokens
        self._state = host.leader_state

    @procedure
    async def update(self, args: UpdateTasks) -> list[int | dict[str, Any]]:
        """Store updates; return how many nodes have each, or its error map."""
        items = args.items
        unsure = await unsure_partitions(self._host, ((task_id, token) for task_id, token, *_ in items))
        started: list[tuple[PartitionLeader, Vote] | OnyxqError] = []
        begun = []
        for task_id, token, seq, data in items:
            try:
                started.append(self._start_update(task_id, token, seq, data, unsure))
                begun.append((task_id, token, seq))
            except OnyxqError as error:
                started.append(error)
        try:
            return [await self._ack(item.id, one, args.w) for item, one in zip(items, started, strict=True)]
        finally:  # also if the client no longer waits; it may repeat the request
            for one in begun:
                self._state.update_ends(*one)

    async def _ack(
        self, task_id: TaskId, started: tuple[PartitionLeader, Vote] | OnyxqError, wanted: int | None
    ) -> int | dict[str, Any]:
        if isinstance(started, OnyxqError):
            return started.to_map()
        leader, vote = started
        try:
            return await leader.decide(vote, wanted=wanted)
        except Unknown as error:
            error.details = [[task_id, 1, len(vote.acks)]]
            return error.to_map()
        except OnyxqError as error:
            return error.to_map()

    def _start_update(
        self, task_id: TaskId, token: int, seq: int, data: bytes, unsure: set[int]
    ) -> tuple[PartitionLeader, Vote]:
        leader = self._tokens.leader_for(task_id, token, unsure)
        taken, refused = valid_tasks(self._host, Run(task_id, 1), token)
        if refused or not taken:
            code = refused[0][2]["code"] if refused else AlreadyFinished.code
            raise (StaleToken if code == StaleToken.code else AlreadyFinished)(
                refused[0][2]["message"] if refused else f"task {task_id.hex()} is finished already"
            )
        found = updates_of(self._host.store, task_id)
        stored = {one.seq: one for one in found if one.token == token}
        if seq in stored:
            if stored[seq].data != data:
                raise Conflict(f"update {seq} of this claim holds other data", field="data")
            row = facts.update_row(task_id, stored[seq]._replace(mark=leader.mark()))
        else:
            expected = max(len(stored), self._state.next_update(task_id, token))
            if len(stored) <= seq < expected:
                raise Unavailable(f"update {seq} of this claim is being stored right now")
            if seq != expected:
                raise SequenceGap(f"update {expected} comes next, not {seq}", field="seq")
            check_room(found, len(data), "data")
            self._state.update_begins(task_id, token, seq)
            row = facts.update_row(task_id, Update(token, seq, self._host.wall_ms(), data, leader.mark()))
        return leader, leader.replicate([row])


class Reports:
    """The reports of the failed attempts of one request. They are stored beside what ends the claims.

    A failure counts even if its report is not stored: the report only explains it.
    """

    def __init__(self, host: OperationsHost) -> None:
        self._host = host
        self._rows: dict[int, list[Row]] = {}
        self._votes: list[tuple[PartitionLeader, Vote]] = []
        self._left = REQUEST_BYTES_MAX

    def add(self, leader: PartitionLeader, run: Run, token: int, report: Report) -> None:
        """Add a report for each task of a run."""
        report = report._replace(traceback=without_middle(report.traceback, TRACEBACK_BYTES_MAX))
        for task_id in ids_of(*run):
            if self._left < len(report.traceback):
                report = report._replace(traceback="")
            if report == NO_REPORT:
                return
            self._left -= len(report.traceback)
            self._rows.setdefault(leader.partition, []).extend(self._rows_of(leader, task_id, token, report))

    def _rows_of(self, leader: PartitionLeader, task_id: TaskId, token: int, report: Report) -> Iterator[Row]:
        """Yield the row of a report, and that of an older one without the traceback for which there is no room."""
        try:
            known = {claim: one for claim, one in reports_of(self._host.store, task_id).items() if claim != token}
        except Corrupt:  # none is shortened, and the failure counts nevertheless
            known = {}
        full = [claim for claim, one in known.items() if one.traceback]
        written = {token: report}
        if report.traceback and len(full) >= TRACEBACKS_MAX:
            oldest = full[TRACEBACKS_FIRST]
            written[oldest] = known[oldest]._replace(traceback="")
        for claim, one in written.items():
            update = facts.report_update(claim, one, at_ms=self._host.wall_ms(), mark=leader.mark())
            yield facts.update_row(task_id, update)

    def send(self) -> None:
        """Send the reports to the holders of their partitions."""
        for partition, rows in sorted(self._rows.items()):
            leader = self._host.leaders[partition]
            try:
                self._votes.append((leader, leader.replicate(rows)))
            except OnyxqError as error:
                _warn(error)

    async def decide(self) -> None:
        """Wait until the reports are stored."""
        for leader, vote in self._votes:
            try:
                await leader.decide(vote)
            except OnyxqError as error:
                _warn(error)


def _warn(error: OnyxqError) -> None:
    log.warning("tracebacks of failed attempts may be lost: %s", error.message)
