"""Stretch and offset of task ids, which are cut out of bytes, compared with arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.ids import (
    COUNTER_MAX,
    STRETCH_TASKS,
    counter_of,
    id_at,
    make_id,
    mask_of,
    offset_of,
    runs_of,
    stretch_of,
)

counters = st.integers(0, COUNTER_MAX)


@given(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 16) - 1), st.integers(0, (1 << 64) - 1), counters)
def test_stretch_and_offset_divide_the_counter(ms: int, partition: int, maker: int, counter: int) -> None:
    """The other parts of an id are unchanged."""
    task_id = make_id(ms, partition, maker, counter)
    whole, offset = divmod(counter, STRETCH_TASKS)
    assert stretch_of(task_id) == make_id(ms, partition, maker, whole * STRETCH_TASKS)
    assert offset_of(task_id) == offset
    assert id_at(stretch_of(task_id), offset) == task_id
    assert counter_of(task_id) == counter


@given(counters, st.integers(1, STRETCH_TASKS))
def test_a_run_and_its_mask_are_the_same_tasks(counter: int, count: int) -> None:
    """Within the stretch."""
    task_id = make_id(1, 2, 3, counter)
    count = min(count, STRETCH_TASKS - offset_of(task_id))
    assert runs_of(stretch_of(task_id), mask_of(task_id, count)) == [(task_id, count)]
