"""What a query reads of the tables, and how copies of a thing are joined; without a cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import compute
from pytest import CaptureFixture, MonkeyPatch

from onyxq.core.ids import make_id
from onyxq.core.limits import TIME_MS_MAX
from onyxq.errors import BadRequest, Incomplete, NotFound
from onyxq.history.archive import Range
from onyxq.history.parquet.files import ParquetFile
from onyxq.history.parquet.layout import FileName, Place, day_of
from onyxq.history.parquet.schema import COLUMNS
from onyxq.history.tables import entry_table, task_tables
from onyxq.history.tables.columns import arrow_schema
from onyxq.history.tables.selection import Selection
from onyxq.history.tables.sources import Sources
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.past.sql_engine import answer, selection_of

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
queue, state, task, made = (compute.field(name) for name in ("queue", "state", "id", "made"))


def moment(ms: int) -> Any:
    """Return a time as filters have it."""
    return pyarrow.scalar(1_000 * ms, pyarrow.timestamp("us", tz="UTC"))


def claimless(n: int, **more: Any) -> dict[str, Any]:
    """Return a row of the archive's table of tasks."""
    task_id = make_id(NOW_MS + n, 1, 7, 0)
    row: dict[str, Any] = dict.fromkeys(name for name, _, _ in COLUMNS["tasks"])
    said = {"id": task_id.hex(), "state": "completed", "priority": 0, "format": "bytes", "data": b"x", "updates": 0}
    return row | said | {"attempts": 0, "depends": [], "made": NOW_MS + n, "due": NOW_MS + n, "finished": NOW_MS} | more


def claim(n: int, token: int, **more: Any) -> dict[str, Any]:
    """Return a row of the archive's table of claims."""
    row: dict[str, Any] = dict.fromkeys(name for name, _, _ in COLUMNS["claims"])
    said = {"id": make_id(NOW_MS + n, 1, 7, 0).hex(), "token": token, "worker": "w", "attempt": 1, "given_up": False}
    return row | said | {"granted": NOW_MS, "ended": NOW_MS + token, "outcome": "completed"} | more


def archived(directory: Path, table: str, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of an archive."""
    place = Place(name, day_of(NOW_MS))
    file = ParquetFile(table, directory / table / place.path, "test", queue=name, partition=1)
    for row in rows:
        file.add(tuple(row[column] for column, _, _ in COLUMNS[table]))
    file.finish()
    file.publish(FileName(1, NOW_MS, NOW_MS + HOUR_MS).with_digest(name.encode()))


def asked(query: str, *directories: Path) -> list[dict[str, Any]]:
    """Return the answer to a query over archives."""
    found: list[dict[str, Any]] = answer(query, Sources(archives=directories), None).to_pylist()
    return found


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (queue == "mail", ("mail",)),
        (queue.isin(["mail", "bills"]), ("bills", "mail")),
        ((queue == "mail") | (queue == 'say "no"'), None),  # a name that is not understood
        ((queue == "mail") & (queue != "mail"), ()),
        (queue > "mail", None),
        (queue != "mail", None),
        ((queue == "mail") | (state == "ready"), None),
        ((queue == "mail") & (compute.field("error") == "bills"), ("mail",)),
    ],
)
def test_only_queues_for_which_a_filter_can_be_true_are_read(filter: Any, expected: Any) -> None:
    """Every queue is read if a filter may be true for one that it does not name."""
    assert selection_of("tasks", ["id"], filter).queues == expected


def test_only_states_and_times_for_which_a_filter_can_be_true_are_read() -> None:
    """Ids begin with times; ``made`` is the same time."""
    found = selection_of("tasks", ["id"], state.isin(["ready", "claimed"]) & (made >= moment(NOW_MS)))
    assert found.states == {"ready", "claimed"}
    assert (found.since_ms, found.until_ms) == (NOW_MS, TIME_MS_MAX)
    assert found.columns == {"id", "state", "made"}
    one = make_id(NOW_MS, 3, 9, 1)
    for table in ("tasks", "claims", "attempts"):
        found = selection_of(table, None, task == one.hex())
        assert (found.since_ms, found.until_ms, found.queues) == (NOW_MS, NOW_MS, None)
    between = (made > moment(NOW_MS)) & (made < moment(NOW_MS + 5))
    assert selection_of("tasks", None, between).since_ms in (NOW_MS, NOW_MS + 1)
    assert selection_of("tasks", None, between).until_ms in (NOW_MS + 4, NOW_MS + 5)
    of_log = selection_of("entries", None, compute.field("time") < moment(NOW_MS))
    assert of_log.since_ms == 0 and of_log.until_ms in (NOW_MS - 1, NOW_MS)


def test_a_task_in_two_archives_counts_once_as_it_ended_last(tmp_path: Path) -> None:
    """So do its claims."""
    one, two = tmp_path / "one", tmp_path / "two"
    archived(one, "tasks", "mail", [claimless(1, state="failed", error="no"), claimless(2)])
    archived(two, "tasks", "mail", [claimless(1, finished=NOW_MS + 9), claimless(3)])
    archived(one, "claims", "mail", [claim(1, 10, outcome="failed")])
    archived(two, "claims", "mail", [claim(1, 10, outcome="failed"), claim(1, 20, attempt=2)])
    assert asked("select made, state from tasks order by id", one, two) == [
        {"made": moment(NOW_MS + n).as_py(), "state": "completed"} for n in (1, 2, 3)
    ]
    assert asked("select count(*) n from tasks where state = 'failed'", one, two) == [{"n": 0}]
    assert asked("select token, outcome from claims order by token", one, two) == [
        {"token": 10, "outcome": "failed"},
        {"token": 20, "outcome": "completed"},
    ]
    assert asked("select attempt, claims from attempts order by attempt", one, two) == [
        {"attempt": 1, "claims": 1},
        {"attempt": 2, "claims": 1},
    ]


def test_a_copy_in_an_archive_does_not_count_while_the_cluster_has_the_task(tmp_path: Path) -> None:
    """A dead letter was requeued after it was archived: whatever state a query asks for, there is one task."""
    archived(tmp_path, "tasks", "mail", [claimless(1, state="failed"), claimless(2, state="failed")])
    view = dict.fromkeys(("ordering_key", "unique_key", "expires_ms", "finished_ms", "retries", "error"))
    view |= dict.fromkeys(("attempts_max", "result", "unique_until", "unique_period_ms", "on_conflict", "flow"))
    view |= {"id": make_id(NOW_MS + 1, 1, 7, 0), "queue": "mail", "state": "ready", "priority": 0, "format": "bytes"}
    view |= {"data": b"x", "created_ms": NOW_MS, "at_ms": NOW_MS, "attempts": 0, "depends": [], "updates": 0}
    calls: list[dict[str, Any]] = []

    def call(method: str, args: dict[str, Any]) -> Any:
        calls.append(args)
        kept = args["state"] in (None, view["state"])
        return {"tasks": [view] if kept else [], "after": None}

    def counted(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer(query, Sources(archives=(tmp_path,)), call).to_pylist()
        return found

    assert counted("select state, archived from tasks order by id") == [
        {"state": "ready", "archived": False},
        {"state": "failed", "archived": True},
    ]
    assert counted("select count(*) n from tasks where state = 'failed'") == [{"n": 1}]
    assert calls[-1]["state"] is None
    assert counted("select count(*) n from tasks where state = 'ready'") == [{"n": 1}]
    assert calls[-1]["state"] == "ready", "archives have no such tasks"


def test_files_that_cannot_have_rows_are_not_opened(tmp_path: Path) -> None:
    """A filter on queue or time skips them, and one on unfinished states all of them."""
    archived(tmp_path, "tasks", "mail", [claimless(n) for n in range(4)])
    archived(tmp_path, "tasks", "a/b", [claimless(9)])
    (damaged,) = (tmp_path / "tasks" / "queue=mail").rglob("*.parquet")
    damaged.write_bytes(b"not Parquet")
    assert asked("select count(*) n from tasks where queue = 'a/b'", tmp_path) == [{"n": 1}]
    assert asked("select count(*) n from tasks where state in ('ready', 'claimed')", tmp_path) == [{"n": 0}]
    assert asked("select count(*) n from tasks where made < '2001-01-01'", tmp_path) == [{"n": 0}]
    with pytest.raises(Exception, match="cannot be read"):
        asked("select count(*) from tasks", tmp_path)


def test_an_archive_is_cut_into_spans_without_gaps(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Together they have every id once."""
    monkeypatch.setattr(task_tables, "CHUNK_BYTES", 1)
    for number in range(3):
        place = Place("mail", day_of(NOW_MS))
        file = ParquetFile("tasks", tmp_path / "tasks" / place.path, "test", queue="mail", partition=1)
        file.add(tuple(claimless(number * HOUR_MS)[column] for column, _, _ in COLUMNS["tasks"]))
        file.finish()
        begin = NOW_MS + number * HOUR_MS
        file.publish(FileName(1, begin, begin + HOUR_MS).with_digest(b""))
    found = task_tables.spans(None, [tmp_path], Selection())
    assert [(one.since_ms, one.until_ms) for one in found] == [
        (0, NOW_MS + HOUR_MS - 1),
        (NOW_MS + HOUR_MS, NOW_MS + 2 * HOUR_MS - 1),
        (NOW_MS + 2 * HOUR_MS, TIME_MS_MAX),
    ]
    assert asked("select count(*) n, count(distinct id) d from tasks", tmp_path) == [{"n": 3, "d": 3}]


def test_ranges_without_others() -> None:
    """Positions that another file has are left out."""
    held = [Range(3, 4), Range(8, 20)]
    assert [*entry_table.without(Range(1, 10), held)] == [Range(1, 2), Range(5, 7)]
    assert [*entry_table.without(Range(9, 12), held)] == []
    assert [*entry_table.without(Range(21, 22), held)] == [Range(21, 22)]


def test_the_columns_are_those_of_the_documentation() -> None:
    """Every column of every table is in the page about SQL."""
    page = (Path(__file__).parents[2] / "docs" / "sql.rst").read_text("utf-8")
    for table in ("tasks", "claims", "attempts", "entries"):
        for name in arrow_schema(table).names:
            assert f"``{name}``" in page, (table, name)


def test_bad_input_is_refused_by_name(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A directory that is not an archive, a statement without an answer, and a missing engine."""
    with pytest.raises(NotFound) as error:
        asked("select 1 from tasks", tmp_path)
    assert error.value.field == "archive"
    with pytest.raises(NotFound) as error:
        answer("select 1 from entries", Sources(records=(tmp_path,)), None)
    assert error.value.field == "records"
    with pytest.raises(BadRequest) as refused:
        answer("set threads = 1", Sources(), None)
    assert refused.value.field == "query"
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(Incomplete, match="DuckDB"):
        answer("select 1", Sources(), None)


def test_a_query_reads_and_writes_no_files(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Nor those that other queries put aside, where DuckDB would put them."""
    (tmp_path / ".tmp").mkdir()
    (tmp_path / ".tmp" / "kept").write_text("secret")
    monkeypatch.chdir(tmp_path)
    for query in (
        "select * from read_text('.tmp/kept')",
        "select * from read_text('kept')",
        "select * from 'kept.csv'",
        "copy (select 1) to '.tmp/made.csv'",
        "copy (select 1) to 'made.csv'",
        "attach 'made.db'",
    ):
        with pytest.raises(BadRequest) as refused:
            answer(query, Sources(), None)
        assert refused.value.field == "query", query
    assert [path.name for path in tmp_path.rglob("*")] == [".tmp", "kept"]


def test_ctrl_c_ends_a_query_at_once() -> None:
    """Not only when the query has its answer."""

    def call(method: str, args: dict[str, Any]) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return {"tasks": [], "after": None}

    long = "select count(*) from range(1_000_000_000) r, (select count(*) as n from tasks) t where r.range % 7 = n"
    began_s = time.process_time()
    with pytest.raises(KeyboardInterrupt):
        answer(long, Sources(), call)
    assert time.process_time() - began_s < 2


def test_columns_of_one_name_are_all_shown(capsys: CaptureFixture[str]) -> None:
    """JSON has each name once."""
    assert run(["sql", "--offline", "--json", 'select 1 as a, 2 as a, 3 as "a:1"']) == 0
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a:1": 2, "a:1:1": 3}]


def test_names_of_columns_cannot_control_the_terminal(capsys: CaptureFixture[str]) -> None:
    """They may come from data: ``pivot`` makes a column for each value."""
    query = "pivot (select chr(27) || '[2J' as key, 1 as n) on key using sum(n)"
    for form in ([], ["--format", "csv"], ["--json"]):
        assert run(["sql", "--offline", query, *form]) == 0
        assert chr(27) not in capsys.readouterr().out, form


def test_values_that_json_or_python_lacks(capsys: CaptureFixture[str]) -> None:
    """A division by zero is a text in JSON; a time that Python cannot hold is an error with advice."""
    assert run(["sql", "--offline", "--json", "select 1 / 0 as a, 'nan'::double as b, [0.5::double] as c"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == [{"a": "inf", "b": "nan", "c": [0.5]}]
    for value in ("timestamp 'infinity'", "[date '100000-01-01']", "timestamptz '290000-01-01'"):
        assert run(["sql", "--offline", f"select {value} as late"]) == 2
        said = capsys.readouterr().err
        assert "column 'late'" in said and "as text" in said, said
