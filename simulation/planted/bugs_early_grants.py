"""Planted bugs of early grants: tasks that are granted while their rows are being stored."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.ids import Run
from onyxq.leader.grants.bodies import Bodies
from onyxq.leader.grants.granter import Granter
from onyxq.store.interface import Piece
from simulation.planted.planted import Planted
from simulation.planted.seams import Fault, instead, returning


def _stored_only(original: Callable[[Granter, Run, int], list[Piece]]) -> Callable[[Granter, Run, int], list[Piece]]:
    def pieces(granter: Granter, run: Run, token: int) -> list[Piece]:
        return [piece for piece in original(granter, run, token) if piece.queue]

    return pieces


def _refused_for_good(bodies: Bodies, first: bytes) -> bool:
    return bodies._early.is_refused(first)


def _if_awaited(granter: Granter, queue: str) -> bool:
    return granter.heads.awaited(queue)


def _bug(name: str, seam: str, fault: Fault, breaks: str, workload: str) -> Planted:
    return Planted(name, seam, fault, breaks, workload, quick=3)


EARLY_GRANT_BUGS: tuple[Planted, ...] = (
    _bug(
        "a claim is answered before the row is stored",
        "onyxq.leader.grants.granter:Granter._await_row",
        returning(None),
        "a worker gets a task that no store has",
        "early_refusal",
    ),
    _bug(
        "the claim of a refused row is not given back",
        "onyxq.leader.grants.granter:Granter._give_back",
        returning(None),
        "the task waits for the lease of a claim that no worker has",
        "early_refusal",
    ),
    _bug(
        "claims on tasks that were never stored do not end",
        "onyxq.leader.grants.granter:Granter.pieces",
        _stored_only,
        "the log keeps them for ever",
        "early_death",
    ),
    _bug(
        "a refused row is never granted",
        "onyxq.leader.grants.bodies:Bodies._never_stored",
        instead(_refused_for_good),
        "a task that the disk or another node has waits for the next leader",
        "early_refusal",
    ),
    _bug(
        "tasks of limited queues are granted early",
        "onyxq.leader.grants.granter:Granter._may_be_early",
        instead(_if_awaited),
        "a claim on a task that is not stored uses up the limit",
        "early_limits",
    ),
    _bug(
        "the lapse of a claim on a missing task may fail it",
        "onyxq.leader.expiry:UNSTORED",
        instead({"retries": 0}),
        "the repeated enqueue of the task is acknowledged, and it is a dead letter",
        "early_death",
    ),
)
