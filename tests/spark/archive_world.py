"""Archives made by tests, and a check of them in plain Python for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onyxq.core.ids import make_id, ms_of
from onyxq.history.parquet.layout import FileName, Place, day_of
from onyxq.history.parquet.schema import CLAIMS, COLUMNS, TASKS, UPDATES, options_of, schema_of
from onyxq.spark.analysis.rules import APART_MS, KEYS, LOST, OVERLAPPING, TOKENS, UNCLAIMED

Row = dict[str, Any]
MS = 1_795_219_200_000
"""The beginning of a day."""
PARTITION = 3


def id_of(number: int, *, ms: int = MS) -> str:
    """An id in hex."""
    return make_id(ms, PARTITION, 7, number).hex()


def task(number: int, token: int | None, **more: Any) -> Row:
    """Return a completed task, finished a second after its time by default."""
    values = {
        "id": id_of(number),
        "state": "completed",
        "priority": 0,
        "format": "bytes",
        "data": b"",
        "made": MS,
        "due": MS,
        "finished": MS + 1_000,
        "attempts": 0,
        "depends": [],
        "token": token,
        "updates": 0,
        "queue": "q",
    }
    return values | more


def claim(number: int, token: int, granted: int, ended: int | None, **more: Any) -> Row:
    """Return a claim; times are milliseconds after `MS`."""
    values = {
        "id": id_of(number),
        "token": token,
        "worker": "w",
        "granted": MS + granted,
        "ended": None if ended is None else MS + ended,
        "outcome": "completed",
        "attempt": 1,
        "given_up": False,
        "queue": "q",
    }
    return values | more


def update(number: int, token: int, seq: int, stored: int) -> Row:
    """An update."""
    return {"id": id_of(number), "token": token, "seq": seq, "stored": MS + stored, "data": b"", "queue": "q"}


def write(
    directory: Path,
    tasks: Iterable[Row] = (),
    claims: Iterable[Row] = (),
    updates: Iterable[Row] = (),
    *,
    part: int = 0,
) -> Path:
    """Write an archive in the layout of peers; ``part`` distinguishes files of the same bucket."""
    (directory / TASKS).mkdir(parents=True, exist_ok=True)
    for table, rows in ((TASKS, tasks), (CLAIMS, claims), (UPDATES, updates)):
        places: dict[Place, list[Row]] = {}
        for row in rows:
            places.setdefault(Place(row["queue"], day_of(ms_of(bytes.fromhex(row["id"])))), []).append(row)
        for place, some in places.items():
            schema = schema_of(table, queue=place.queue, partition=PARTITION)
            columns = [
                pa.array([row.get(name) for row in some], schema.field(name).type) for name, *_ in COLUMNS[table]
            ]
            name = FileName(PARTITION, MS, MS + 3_600_000).with_digest(bytes([part]))
            file = directory / table / place.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_arrays(columns, schema=schema), file, **options_of(table))
    return directory


# --- the check in plain Python ----------------------------------------------------------------

Found = set[tuple[str, str, int | None]]
"""(rule, id, token)."""


def naive(tasks: Sequence[Row], claims: Sequence[Row], updates: Sequence[Row], *, apart_ms: int = APART_MS) -> Found:
    """Return the violations of each rule in files that are old enough."""
    found: Found = set()
    last: dict[str, Row] = {}
    for row in tasks:
        known = last.get(row["id"])
        if known is None or _end_of(known) < _end_of(row):
            last[row["id"]] = row
    ids = {row["id"] for row in (*tasks, *claims, *updates)}
    kept: dict[str, list[Row]] = {}
    for task_id in sorted(ids):
        mine = _distinct_claims([row for row in claims if row["id"] == task_id], found)
        kept[task_id] = mine
        notes = {(row["token"], row["seq"]): row for row in updates if row["id"] == task_id}
        latest = {
            key: max(r["stored"] for r in updates if r["id"] == task_id and (r["token"], r["seq"]) == key)
            for key in notes
        }
        found |= _of_task(task_id, last.get(task_id), mine, latest, apart_ms)
    return found | _of_keys(last, kept, found, apart_ms)


def _end_of(row: Row) -> tuple[int, int]:
    return row["finished"], -1 if row["token"] is None else row["token"]


def _distinct_claims(rows: list[Row], found: Found) -> list[Row]:
    out = {}
    for row in rows:
        known = out.get(row["token"])
        if known is not None and known["worker"] != row["worker"]:
            found.add((TOKENS, row["id"], row["token"]))
        if known is None or (known["ended"] or -1) < (row["ended"] or -1):
            out[row["token"]] = row
    return [out[token] for token in sorted(out)]


def _overlaps(before: list[tuple[Row, int | None]], one: Row, apart_ms: int) -> bool:
    """Return whether an earlier claim was still valid when this one was granted."""
    if any(other.get("until") is not None and other["until"] > one["token"] for other, _ in before):
        return True
    ends = [end for other, end in before if other.get("until") is None]
    backwards = any(other["granted"] > one["granted"] for other, _ in before)
    late = any(end is not None and end > one["granted"] + apart_ms for end in ends)
    return None in ends or (late and not backwards)


def _of_task(
    task_id: str, task: Row | None, claims: list[Row], updates: dict[tuple[int, int], int], apart_ms: int
) -> Found:
    found: Found = set()
    tokens = {one["token"] for one in claims}
    completed = task if task is not None and task["state"] == "completed" else None
    for place, one in enumerate(claims):
        if _overlaps([(other, other["ended"]) for other in claims[:place]], one, apart_ms):
            found.add((OVERLAPPING, task_id, one["token"]))
        if one.get("until") is not None and one["until"] <= one["token"]:
            found.add((TOKENS, task_id, one["token"]))
        if any(other["outcome"] == "completed" and other.get("until") is None for other in claims[:place]):
            found.add((TOKENS, task_id, one["token"]))
    ends = [(token, updates[token, min(seq for other, seq in updates if other == token)]) for token, _ in updates]
    if completed is not None:
        ends.append((completed["token"], completed["finished"]))
        if completed["token"] not in tokens:
            found.add((UNCLAIMED, task_id, completed["token"]))
    for token, end in ends:
        if any(other < token and stored > end + apart_ms for (other, _), stored in updates.items()):
            found.add((TOKENS, task_id, token))
    found |= {(UNCLAIMED, task_id, token) for token, _ in updates if token not in tokens}
    if task is None:
        found.add((LOST, task_id, min([*tokens, *(token for token, _ in updates)])))
    elif len(updates) < task["updates"]:
        found.add((LOST, task_id, task["token"]))
    return found


def _of_keys(tasks: dict[str, Row], claims: dict[str, list[Row]], known: Found, apart_ms: int) -> Found:
    found: Found = set()
    keys: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for task_id, task in tasks.items():
        if task.get("ordering_key") is not None:
            members = keys.setdefault((task["queue"], task["ordering_key"]), [])
            members.extend((one, task) for one in claims[task_id])
    for members in keys.values():
        members.sort(key=lambda pair: (pair[0]["token"], pair[0]["id"]))
        for place, (one, task) in enumerate(members):
            before = [(other, other["ended"] or its["finished"]) for other, its in members[:place]]
            own = (OVERLAPPING, one["id"], one["token"]) not in known
            if (own and _overlaps(before, one, apart_ms)) or _passed(members[:place], task, apart_ms):
                found.add((KEYS, one["id"], one["token"]))
    return found


def _passed(before: list[tuple[Row, Row]], task: Row, apart_ms: int) -> bool:
    """Return whether a later task of the key was granted before it."""
    placed = [(its["turn"], other["granted"], its["id"]) for other, its in before if its.get("turn") is not None]
    if not placed or task.get("turn") is None or task.get("requeued") is not None:
        return False
    turn, granted, _ = max(placed)
    return bool(turn > task["turn"] and granted > task["turn"][0] + apart_ms)
