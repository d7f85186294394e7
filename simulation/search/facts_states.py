"""Counts which states of tasks begin while tasks are in other states, in the search of facts.

`onyxq.leader.state.states` says which transitions must not happen. Every other pair is a probe here, so that a table
shows which of them a search has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from onyxq.core.ids import Run, TaskId, mask_of, stretch_of
from onyxq.leader.state.leader_state import LeaderState
from onyxq.leader.state.ordering_keys import OrderingKeys
from onyxq.leader.state.states import FOLLOWS, NEVER_DURING, SHARED, State
from simulation.planted.seams import faulty
from simulation.probes import Probes

FOLLOWING = tuple(follower for followers in FOLLOWS.values() for follower in followers)
"""States that begin only in place of another one in a search, where any two nodes are a majority."""


def during(state: State, other: State) -> str:
    """Return the name of the probe of a pair."""
    return f"{state.name} began during {other.name}"


def alone(state: State) -> str:
    """Return the name of the probe of a task that was free."""
    return f"{state.name} began"


def follows(state: State, follower: State) -> str:
    """Return the name of the probe of a state that takes the place of another one."""
    return f"{follower.name} took the place of {state.name}"


def _pairs() -> Iterator[str]:
    for state in State:
        if state not in FOLLOWING:
            yield alone(state)
            for other in State:
                if other not in NEVER_DURING[state] and (other is not state or state in SHARED):
                    yield during(state, other)
    for state, followers in FOLLOWS.items():
        for follower in followers:
            yield follows(state, follower)


PAIRS = tuple(_pairs())
"""Every transition that may happen."""


def _count(probes: Probes, states: LeaderState, state: State, stretch: bytes, mask: int) -> None:
    found = [other for other in State if states.bits(other, stretch) & mask]
    for name in [during(state, other) for other in found] or [alone(state)]:
        if name in probes.counts:  # otherwise the leader refuses it
            probes.reached(name)


@contextmanager
def counted_states(probes: Probes) -> Iterator[None]:
    """Count the transitions of all leaders in a table of `PAIRS`, and let none happen that must not."""

    def counted_begin(original: Callable[..., None]) -> Callable[..., None]:
        def begin(states: LeaderState, state: State, runs: Iterable[Run]) -> None:
            runs = list(runs)
            for run in runs:
                _count(probes, states, state, stretch_of(run.first), mask_of(*run))
            original(states, state, runs)

        return begin

    def counted_replace(original: Callable[..., None]) -> Callable[..., None]:
        def replace(states: LeaderState, state: State, follower: State, runs: Iterable[Run]) -> None:
            probes.reached(follows(state, follower))
            original(states, state, follower, runs)

        return replace

    def counted_hold(original: Callable[..., None]) -> Callable[..., None]:
        def hold(keys: OrderingKeys, digest: bytes, task_id: TaskId) -> None:
            busy: Any = keys._is_busy
            if not keys.held(Run(task_id, 1)):
                _count(probes, busy.__self__, State.HOLDING_KEY, stretch_of(task_id), mask_of(task_id, 1))
            original(keys, digest, task_id)

        return hold

    path = "onyxq.leader.state.leader_state:LeaderState"
    seams = [
        (f"{path}.begin", counted_begin),
        (f"{path}.replace", counted_replace),
        (f"{path}.strict", lambda _: True),
        ("onyxq.leader.state.ordering_keys:OrderingKeys.hold", counted_hold),
    ]
    with faulty(seams):
        yield
