"""What a leader writes for completions, decided without an event loop from an index, a replica and a state."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.errors import SequenceGap
from onyxq.core.facts import (
    COMPLETED,
    EXPIRED,
    GRANTED,
    Completion,
    History,
    Mark,
    Row,
    Update,
    completion_row,
    history_row,
    pack_task,
    task_row,
    update_row,
)
from onyxq.core.ids import Run, TaskId, make_id
from onyxq.core.replica import EMPTY
from onyxq.leader.state.completion_plan import Completed, planned
from onyxq.leader.state.leader_state import LeaderState
from onyxq.leader.state.states import State
from onyxq.store.interface import Batch
from onyxq.store.memory import MemoryStore
from simulation.world.disk import SimulatedDisk

TASK = make_id(1_000, 0, 7, 0)
TOKEN = 40
NEW = Mark(3, 1)


class Lapsed:
    """A leader's view of one task whose claim has expired."""

    def __init__(self, *rows: Row) -> None:
        self.store = MemoryStore(SimulatedDisk(), now_ms=lambda: 5_000)
        self.replica = EMPTY
        self.leader_state = LeaderState()
        self.leader_state.begin_leadership(0, 0)
        granted = History(TOKEN, 0, 1, GRANTED, TOKEN, 0, "w", 0, 0, "")
        expired = History(TOKEN + 1, 0, 1, EXPIRED, TOKEN, 0, "", 0, 1, "")
        said = [
            task_row(TASK, pack_task({"queue": "q"}, [b"x"])),
            history_row(TASK, granted),
            history_row(TASK, expired),
        ]
        trio.run(self.store.write, Batch(rows=(*said, *rows)))

    def codes(self, item: Completed) -> tuple[int, list[str]]:
        """Return the number of completions to write, and the codes of the refused parts."""
        finishes, refused = planned(self, item, lambda: NEW)
        return len(finishes), [error["code"] for _, _, error in refused]


def reported(token: int = TOKEN, seq: int | None = None, result: bytes | None = None) -> Completed:
    """Return the report of a worker that the task is completed."""
    return Completed(TaskId(TASK), 1, token, seq, [result])


def test_the_token_of_an_expired_claim_completes_the_task_until_it_is_granted_again() -> None:
    """While a grant is on its way, and while the log may have it, the token is refused."""
    view = Lapsed()
    assert view.codes(reported()) == (1, [])
    view.leader_state.begin(State.GRANTING, [Run(TASK, 1)])
    assert view.codes(reported()) == (0, ["stale_token"])
    view.leader_state.replace(State.GRANTING, State.UNDECIDED, [Run(TASK, 1)])
    assert view.codes(reported()) == (0, ["not_leader"])


def test_another_token_is_refused_and_a_partition_that_does_not_serve_cannot_tell() -> None:
    """A leader whose store lacks records of the log must not call a token stale."""
    view = Lapsed()
    assert view.codes(reported(TOKEN - 1)) == (0, ["stale_token"])
    view.leader_state.end_leadership(0)
    assert view.codes(reported(TOKEN - 1)) == (0, ["not_leader"])


def test_a_repeated_completion_writes_the_stored_row_again_and_another_result_is_refused() -> None:
    """The row gets a mark of this leader, so it wins over rows that earlier leaders left elsewhere."""
    done = Completion(TOKEN, 1, COMPLETED, 4_000, [b"r"], Mark(1, 1))
    view = Lapsed(completion_row(TASK, done))
    (finish,), refused = planned(view, reported(result=b"r"), lambda: NEW)
    assert not refused and finish.rows == [completion_row(TASK, done._replace(mark=NEW))]
    assert view.codes(reported(result=b"other")) == (0, ["already_finished"])


def test_a_completion_follows_the_last_update() -> None:
    """Otherwise an update that the worker sent before it could be lost."""
    view = Lapsed(update_row(TASK, Update(TOKEN, 0, 4_000, b"u", Mark(1, 1))))
    assert view.codes(reported(seq=1)) == (1, [])
    with pytest.raises(SequenceGap):
        planned(view, reported(seq=0), lambda: NEW)
