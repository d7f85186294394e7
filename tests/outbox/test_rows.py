"""Rows of the outbox: ids, options, and the parts in which rows are sent."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onyxq import Step
from onyxq.core.facts import partition_of_keys
from onyxq.core.ids import TaskId, counter_of, make_id, ms_of, partition_of
from onyxq.errors import BadRequest, TooLarge
from onyxq.outbox.relay import parts
from onyxq.outbox.rows import PendingRow, RowMaker, create_table, fresh_id

NOW_MS = 1_700_000_000_000


def pending(seq: int, **options: Any) -> PendingRow:
    """Return a row whose task has an id made from its number."""
    return PendingRow(task_id=numbered(seq), queue="q", data=b"", options=options, seq=seq, sent=False)


def numbered(seq: int) -> TaskId:
    """Return that id."""
    return make_id(NOW_MS, 1, seq, 0)


def test_each_row_has_an_id_that_shares_nothing_with_others() -> None:
    """No counter: processes that a web server forks would count alike and lose each other's tasks."""
    ids = [row.task_id for row in RowMaker().rows([Step("q", b"x")] * 100)]
    assert len({one[8:16] for one in ids}) == 100
    assert {counter_of(one) for one in ids} == {0}
    assert len({partition_of(one) for one in ids}) > 10
    assert max(map(partition_of, ids)) < 64


def test_the_id_is_in_the_partition_of_the_ordering_key() -> None:
    """The cluster refuses another one."""
    (row,) = RowMaker(partitions=7).rows([Step("mail", b"x", ordering_key="customer 9")])
    assert partition_of(row.task_id) == partition_of_keys("mail", "customer 9", 7)
    assert row.options == {"ordering_key": "customer 9"}


def test_the_id_has_the_due_time() -> None:
    """A delay counts from the time at which the row is written, not from the relay."""
    before_ms = time.time_ns() // 1_000_000
    later, at, past = RowMaker().rows(
        [Step("q", delay_ms=60_000), Step("q", at_ms=before_ms + 9_000_000), Step("q", at_ms=5)]
    )
    assert 60_000 <= ms_of(later.task_id) - before_ms < 70_000
    assert ms_of(at.task_id) == at.options["at_ms"] == before_ms + 9_000_000
    assert ms_of(past.task_id) >= before_ms


def test_options_are_json_and_become_the_arguments_of_enqueue() -> None:
    """Only options that differ from the defaults are stored; the trace is not an argument."""
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    step = Step("q", b"x", priority=5, retries=None, depends=[numbered(3)], trace=trace, format="json")
    (row,) = RowMaker().rows([step])
    said = {"priority": 5, "retries": None, "depends": [numbered(3).hex()], "format": "json"}
    assert row.options == {**said, "trace": trace}
    found = PendingRow(task_id=row.task_id, queue="q", data=b"x", options=row.options, seq=1, sent=False)
    assert found.arguments(NOW_MS) == {**said, "id": row.task_id}


def test_a_due_time_that_is_over_is_left_out() -> None:
    """Queues refuse a time in the past, but the relay was late, not the caller."""
    assert "at_ms" in pending(1, at_ms=NOW_MS + 1).arguments(NOW_MS)
    assert "at_ms" not in pending(1, at_ms=NOW_MS).arguments(NOW_MS)


def test_unknown_options_of_a_row_are_refused_by_name() -> None:
    """A row may come from a program in another language."""
    with pytest.raises(BadRequest, match="'colour'"):
        pending(1, colour="red").arguments(NOW_MS)


def test_rows_are_sent_together_unless_one_depends_on_another() -> None:
    """The cluster refuses a task that depends on one that does not exist yet."""
    rows = [pending(1), pending(2), pending(3, depends=[numbered(1).hex()]), pending(4, depends=[numbered(1).hex()])]
    assert [[row.seq for row in part] for part in parts(rows)] == [[1, 2], [3, 4]]
    assert list(parts([])) == []


def test_a_fresh_id_keeps_the_partition_and_a_later_due_time() -> None:
    """It differs from the old one even in the same millisecond."""
    old = make_id(NOW_MS, 9, 1, 0)
    assert fresh_id(old, NOW_MS + 5) != fresh_id(old, NOW_MS + 5)
    assert (partition_of(fresh_id(old, NOW_MS)), ms_of(fresh_id(old, NOW_MS - 5))) == (9, NOW_MS)


def test_wrong_arguments_are_refused_by_name() -> None:
    """Names of tables are written into statements, so they are checked."""
    for table in ("x; DROP TABLE y", 'a"b', "A.B.C", ""):
        with pytest.raises(BadRequest, match="table must be"):
            create_table(table)
    with pytest.raises(BadRequest, match="partitions must be from 1"):
        RowMaker(partitions=0)
    with pytest.raises(TooLarge):
        RowMaker().rows([Step("q", bytes(2**24 + 1))])
    assert create_table("shop.outbox").startswith("CREATE TABLE IF NOT EXISTS shop.outbox (")
