"""What happens to tasks at their leader, compared with a model that knows one task at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from onyxq.core.facts import key_digest
from onyxq.core.ids import Run, TaskId, ids_of, make_id, mask_of, partition_of, stretch_of
from onyxq.core.replica import EMPTY
from onyxq.leader.state import states
from onyxq.leader.state.leader_state import LeaderState, Refused
from onyxq.leader.state.states import FOLLOWS, NEVER_DURING, UNKNOWN, State
from simulation.planted.seams import ROOT, Fault, faulty, instead, returning

BEGUN = [one for one in State if one not in (State.UNDECIDED, *UNKNOWN, State.HOLDING_KEY)]
"""States that begin by themselves and end as often as they began."""
TWICE = (State.FINISHING, State.RENEWING)

BUSY = {*BEGUN, State.UNDECIDED, State.UNSETTLED} - {State.REOPENING, State.RENEWING}
"""States for which other tasks of a key wait."""

APART = {
    State.GRANTING: {State.UNDECIDED, State.RETURNING, State.CHANGING, State.FINISHING},
    State.UNDECIDED: {State.RETURNING, State.CHANGING, State.FINISHING},
    State.RETURNING: {State.CHANGING},
}
"""States in which no task may be at one time."""

FIRSTS = [make_id(1_000, *place) for place in ((0, 7, 0), (0, 7, 1), (0, 7, 2), (0, 7, 1_024), (1, 7, 0), (1, 7, 1))]
TASKS = sorted({one for first in FIRSTS for one in ids_of(first, 2)})
RUNS = st.builds(Run, st.sampled_from(FIRSTS), st.integers(1, 2))


def may_begin(now: Counter[State], state: State) -> bool:
    """Return whether a task that is in these states may come into another one."""
    inside = {one for one in now if now[one]}
    if state in inside and state not in TWICE:
        return False
    if any({state, one} - {left} <= right for one in inside for left, right in APART.items() if left in (state, one)):
        return False
    return {
        # The data of a unique task does not change any more while the task is being finished.
        State.CHANGING: not inside & {State.FINISHING},
        # Only finished tasks are dead letters, so they are neither granted nor finished.
        State.REOPENING: not inside & {State.GRANTING, State.UNDECIDED, State.FINISHING},
        # Only claims are renewed, once it is known that their tasks are not being finished.
        State.RENEWING: not inside & {State.GRANTING, State.FINISHING},
        # A task that only this node has is not granted.
        State.GRANTING: not inside & {State.UNCONFIRMED},
    }.get(state, True)


def refused(transition: Callable[[], object]) -> None:
    """Make a transition that must be refused."""
    try:
        transition()
    except Refused:
        return
    raise AssertionError("the transition was made")


class Machine(RuleBasedStateMachine):
    """One `LeaderState`, and for each task how often it is in each state."""

    def __init__(self) -> None:
        super().__init__()
        self.state = LeaderState()
        self.tasks: dict[TaskId, Counter[State]] = {}
        self.under_way: list[tuple[State, Run]] = []
        """What was begun, and will end."""
        self.held: dict[bytes, list[TaskId]] = {}
        """Key -> tasks that hold it, in the order in which they began to."""

    def now(self, task_id: TaskId) -> Counter[State]:
        """Return how often a task is in each state."""
        return self.tasks.setdefault(task_id, Counter())

    def change(self, run: Run, state: State, by: int) -> None:
        """Count a beginning or an end for the tasks of a run."""
        for task_id in ids_of(*run):
            self.now(task_id)[state] += by

    @rule(state=st.sampled_from(BEGUN), run=RUNS)
    def begin(self, state: State, run: Run) -> None:
        """A state begins, or is refused and changes nothing."""
        if all(may_begin(self.now(one), state) for one in ids_of(*run)):
            self.state.begin(state, [run])
            self.change(run, state, 1)
            self.under_way.append((state, run))
        else:
            refused(partial(self.state.begin, state, [run]))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), follow=st.booleans())
    def end(self, data: st.DataObject, follow: bool) -> None:
        """What was begun ends, or another state takes its place; its tasks are offered again."""
        state, run = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        if follow and state in FOLLOWS:
            follower = FOLLOWS[state][0]
            self.state.replace(state, follower, [run])
            for one in ids_of(*run):
                self.now(one)[follower] = 1
        else:
            assert self.state.end(state, [run]) == [run]
        self.change(run, state, -1)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), state=st.sampled_from(BEGUN))
    def begin_beside(self, data: st.DataObject, state: State) -> None:
        """Something else happens to tasks to which something happens already."""
        self.begin(state, data.draw(st.sampled_from([run for _, run in self.under_way])))

    @precondition(lambda self: any(state in TWICE for state, _ in self.under_way))
    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        """A second request finishes or renews tasks while the first one is on its way."""
        self.begin(*data.draw(st.sampled_from([one for one in self.under_way if one[0] in TWICE])))

    @rule(state=st.sampled_from(BEGUN), run=RUNS)
    def end_what_did_not_begin(self, state: State, run: Run) -> None:
        """A state ends only for tasks that are in it."""
        if not all(self.now(one)[state] for one in ids_of(*run)):
            refused(partial(self.state.end, state, [run]))

    @rule(state=st.sampled_from(UNKNOWN), run=RUNS)
    def find_row(self, state: State, run: Run) -> None:
        """A majority may lack the row of a task with keys that is written, or a completion that is found."""
        self.state.begin(state, [run])
        for one in ids_of(*run):
            self.now(one)[state] = 1

    @rule(state=st.sampled_from(UNKNOWN), run=RUNS)
    def settle(self, state: State, run: Run) -> None:
        """It becomes known whether tasks are finished, or that a majority has their rows."""
        self.state.settle(state, [run])
        for one in ids_of(*run):
            self.now(one)[state] = 0

    @rule(partition=st.sampled_from([0, 1]))
    def end_leadership(self, partition: int) -> None:
        """Another node leads: writes that are on their way end later, the rest is forgotten."""
        self.state.end_leadership(partition)
        for task_id, now in self.tasks.items():
            if partition_of(task_id) == partition:
                now[State.UNDECIDED] = now[State.REOPENING] = now[State.UNCONFIRMED] = 0
        self.under_way = [
            one for one in self.under_way if one[0] is not State.REOPENING or partition_of(one[1].first) != partition
        ]
        for key in self.held:
            self.held[key] = [one for one in self.held[key] if partition_of(one) != partition]

    # --- ordering keys: tasks with the same last byte have the same key

    @rule(task_id=st.sampled_from(TASKS))
    def hold_key(self, task_id: TaskId) -> None:
        """A task of a key is worked on."""
        self.state.keys.hold(key_of(task_id), task_id)
        holders = self.held.setdefault(key_of(task_id), [])
        if task_id not in holders:
            holders.append(task_id)

    @rule(task_id=st.sampled_from(TASKS))
    def release_key(self, task_id: TaskId) -> None:
        """A task of a key is finished."""
        self.state.keys.release(task_id)
        holders = self.held.setdefault(key_of(task_id), [])
        if task_id in holders:
            holders.remove(task_id)

    @rule(task_id=st.sampled_from(TASKS))
    def ask_key(self, task_id: TaskId) -> None:
        """A task waits for busy tasks of its key; holders before them that are not busy are forgotten."""
        holders = self.held.setdefault(key_of(task_id), [])
        held = False
        for one in [one for one in holders if one != task_id]:
            if held := any(self.now(one)[state] for state in BUSY):
                break
            holders.remove(one)
        assert self.state.keys.is_held(key_of(task_id), task_id, EMPTY) == held

    # --- after every step

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        """No state is lost, left behind or given to a neighbour."""
        holders = {one for held in self.held.values() for one in held}
        for task_id in TASKS:
            inside = {state for state in State if self.state.bits(state, stretch_of(task_id)) & mask_of(task_id, 1)}
            expected = {state for state, times in self.now(task_id).items() if times}
            assert inside == expected | ({State.HOLDING_KEY} if task_id in holders else set())

    @invariant()
    def what_must_not_begin_is_refused(self) -> None:
        """Whatever is under way, no state begins that excludes it, and a refusal changes nothing."""
        for run in {run for _, run in self.under_way}:
            for state in BEGUN:
                if not all(may_begin(self.now(one), state) for one in ids_of(*run)):
                    refused(partial(self.state.begin, state, [run]))

    @invariant()
    def no_task_is_granted_while_something_else_happens(self) -> None:
        """States that exclude each other never meet, and a task in one of them is not granted."""
        for task_id in TASKS:
            stretch, mask = stretch_of(task_id), mask_of(task_id, 1)
            inside = {state for state, times in self.now(task_id).items() if times}
            assert not any(inside & apart for state, apart in APART.items() if state in inside)
            blocked = {State.GRANTING, State.UNDECIDED, State.RETURNING, State.CHANGING}
            assert bool(self.state.ungrantable(stretch) & mask) == bool(
                inside & {*blocked, State.FINISHING, State.UNCONFIRMED}
            )
            assert bool(self.state.blocked(Run(task_id, 1))) == bool(inside & blocked)
            assert bool(self.state.unsure(stretch) & mask) == bool(inside & {State.FINISHING, State.UNSETTLED})
            assert self.state.is_busy(task_id, EMPTY) == bool(inside & BUSY)


def key_of(task_id: TaskId) -> bytes:
    """Return the key of a task: in each partition there are two."""
    return key_digest("q", f"{task_id[19] % 2}")


def search(runs: int) -> None:
    """Drive the state with random steps; raises what differs."""
    chosen = settings(
        max_examples=runs,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
    )
    run_state_machine_as_test(Machine, settings=chosen)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transitions that must not happen raise."""
    monkeypatch.setattr(LeaderState, "strict", True)


def test_the_state_is_that_of_a_model() -> None:
    """Any steps, of any tasks of two partitions, leave each task in the states of the model."""
    search(40)


def test_the_table_in_the_design_is_that_of_the_code() -> None:
    """The page lists each state, and the states in which it does not begin."""
    lines = (
        (ROOT / "docs/design.rst")
        .read_text("utf-8")
        .partition("    state        begins")[2]
        .partition("*Undecided*")[0]
    )
    listed: dict[str, list[str]] = {}
    for line in lines.splitlines()[2:]:
        if name := line[4:17].strip():
            listed[name] = []
        if listed:
            listed[[*listed][-1]] += line[81:].replace("-", "").split()
    assert listed == {one.name.lower(): [other.name.lower() for other in NEVER_DURING[one]] for one in State}


def without(state: State, *, during: State) -> Fault:
    """Return the fault that allows a state during another one."""
    return lambda never: {**never, state: tuple(one for one in never[state] if one is not during)}


def _first_ends(original: Callable[..., int]) -> Callable[..., int]:
    def end_once(self: LeaderState, state: State, stretch: bytes, mask: int) -> int:
        original(self, state, stretch, mask)
        return mask

    return end_once


def _not_from(original: Callable[..., Any]) -> Callable[..., Any]:
    def replace(self: LeaderState, state: State, follower: State, runs: list[Run]) -> None:
        for run in runs:
            self._table[follower][stretch_of(run.first)] = mask_of(*run)

    return replace


FAULTS: dict[str, tuple[str, Fault]] = {
    "a task is granted while its completion is being written": (
        "onyxq.leader.state.leader_state:NEVER_DURING",
        without(State.GRANTING, during=State.FINISHING),
    ),
    "a task is completed while it is being granted": (
        "onyxq.leader.state.leader_state:NEVER_DURING",
        without(State.FINISHING, during=State.GRANTING),
    ),
    "a task is granted although the end of its claim is not stored": (
        "onyxq.leader.state.leader_state:NEVER_DURING",
        without(State.GRANTING, during=State.RETURNING),
    ),
    "a task is granted with data that is being replaced": (
        "onyxq.leader.state.leader_state:NEVER_DURING",
        without(State.GRANTING, during=State.CHANGING),
    ),
    "a dead letter is requeued twice": (
        "onyxq.leader.state.leader_state:NEVER_DURING",
        without(State.REOPENING, during=State.REOPENING),
    ),
    "the first of two writers ends the state": ("onyxq.leader.state.leader_state:LeaderState._end_once", _first_ends),
    "completions of one task are written once only": ("onyxq.leader.state.leader_state:SHARED", instead(())),
    "an undecided grant stays in the log's way": ("onyxq.leader.state.leader_state:LeaderState.replace", _not_from),
    "a leadership that ends forgets nothing": (
        "onyxq.leader.state.leader_state:LeaderState.end_leadership",
        returning(None),
    ),
    "an undecided grant outlives the leadership": (
        "onyxq.leader.state.leader_state:ENDS_WITH_LEADERSHIP",
        instead((State.REOPENING, State.UNCONFIRMED, State.HOLDING_KEY)),
    ),
    "grants end with the leadership": (
        "onyxq.leader.state.leader_state:ENDS_WITH_LEADERSHIP",
        instead((State.GRANTING, State.UNDECIDED, State.REOPENING, State.UNCONFIRMED)),
    ),
    "tasks that are being finished count as grantable": (
        "onyxq.leader.state.leader_state:UNGRANTABLE",
        instead(states.BLOCKED),
    ),
    "a completion that is in doubt frees its key": (
        "onyxq.leader.state.leader_state:BUSY",
        instead((*states.BLOCKED, State.FINISHING)),
    ),
    "what is settled stays unsettled": ("onyxq.leader.state.leader_state:LeaderState.settle", returning(None)),
    "a refused transition is made": ("onyxq.leader.state.leader_state:LeaderState._refuse", returning(None)),
    "neighbours leave a state together": (
        "onyxq.leader.state.leader_state:_keep",
        lambda keep: lambda column, stretch, bits: keep(column, stretch, 0),
    ),
    "a key is not released": (
        "onyxq.leader.state.ordering_keys:OrderingKeys.release",
        returning(None),
    ),
    "a task waits for itself": (
        "onyxq.leader.state.ordering_keys:OrderingKeys.is_held",
        lambda original: lambda self, digest, task_id, replica: original(self, digest, b"", replica),
    ),
}
"""Planted faults of the state, each with its seam."""


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    """The steps reach each fault, and the model differs."""
    with faulty([FAULTS[name]]), pytest.raises((AssertionError, KeyError)):
        search(400)
