"""The log, record by record, with a slider, and the replica at any position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import attrs
from msgspec import Meta
from starlette.responses import Response

from onyxq.core.diff import Change, Tree, in_words, plain
from onyxq.core.replica import Replica
from onyxq.history.words import brief, duration, moment, sentence
from onyxq.interfaces.dashboard.page import PageArgs, shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.past import View
from onyxq.operations.table.log import At

WINDOW = 20
"""Records on the page, up to the chosen one."""
CHANGES_MAX = 60
KEYS_MAX = 20
"""Most keys of one branch of the replica."""
LINE_CHARS_MAX = 300
SENTENCE_CHARS_MAX = 400
ENTRIES_SHOWN, ENTRIES_MAX = 5, 20
"""Largest numbers of entries of a record: shown without a click, and in all."""
CHANGES_SHOWN = 10
"""Largest number of changes that are shown without a click."""
WALL_MS = 1_000_000_000_000
"""Smallest number that is read as a time since the epoch in ms; smaller ones are durations, or log time."""


class LogPage(PageArgs):
    """The log up to a position."""

    at: Annotated[At | None, Meta(description="The position to show.")] = None


async def get_log(call: Call) -> Response:
    """Answer with the records up to a position and the replica after it."""
    view = await call.kit.past.view(call.api.call, call.args.at, WINDOW)
    branches = await anyio.to_thread.run_sync(branches_of, view.replica)
    return page(
        call,
        "log.html",
        title="Log",
        here="/ui/log",
        view=view,
        records=_records(view),
        shown_entries=ENTRIES_SHOWN,
        shown_changes=CHANGES_SHOWN,
        changes=[brief(one, LINE_CHARS_MAX) for one in in_words(_readable(view.changes), limit=CHANGES_MAX)],
        summary=_summary(view.replica),
        branches=branches,
    )


def _records(view: View) -> list[dict[str, Any]]:
    """Return the records, newest first, with entries in words; consecutive records without entries are merged."""
    out: list[dict[str, Any]] = []
    for record, done in reversed(view.records):
        entries = [
            brief(sentence(one.name, one.args, one.verdict), SENTENCE_CHARS_MAX) for one in done.outcomes[:ENTRIES_MAX]
        ]
        empty = not entries and not done.problem
        if empty and out and out[-1]["empty"]:
            out[-1] |= {"empty": out[-1]["empty"] + 1, "first": record.position, "first_at_ms": record.ctime_ms}
            out[-1]["peers"].add(done.peer)
            continue
        out.append(
            {
                "position": record.position,
                "at_ms": record.ctime_ms,
                "first": record.position,
                "first_at_ms": record.ctime_ms,
                "empty": int(empty),
                "peers": {done.peer},
                "problem": done.problem,
                "entries": entries,
                "count": len(done.outcomes),
            }
        )
    return out


def _readable(changes: Sequence[Change]) -> list[Change]:
    """Return changes with times as dates or durations."""
    return [
        attrs.evolve(one, before=_timed(one.path[-1], one.before), after=_timed(one.path[-1], one.after))
        for one in changes
    ]


def _timed(name: str, value: Any) -> Any:
    """Return a value of a field of the replica; a time in words, other values as they are."""
    if not name.endswith("_ms") or type(value) is not int:
        return value
    return moment(value) if value >= WALL_MS else duration(value)


def _summary(replica: Replica) -> dict[str, int]:
    return {
        "peers": len(replica.ring.members),
        "partitions": len(replica.partitions),
        "led": sum(1 for placed in replica.partitions.values() if placed.ready),
        "claimed": sum(
            piece[1] for stretches in replica.claims.values() for pieces in stretches.values() for piece in pieces
        ),
        "jobs": len(replica.jobs),
    }


def branches_of(replica: Replica) -> list[tuple[str, list[str], int]]:
    """Return each part of the replica as lines for its first keys, with the number of further keys."""
    out = []
    for one in attrs.fields(Replica):
        value = getattr(replica, one.name)
        if isinstance(value, Mapping):
            keys = sorted(value)
            lines = [line for key in keys[:KEYS_MAX] for line in _lines(_name(key), _bounded(value[key]), 0)]
            out.append((one.name, lines, max(0, len(keys) - KEYS_MAX)))
        elif attrs.has(type(value)):
            out.append((one.name, list(_lines(one.name, _bounded(value), 0)), 0))
    return [branch for branch in out if branch[1]]


def _bounded(value: Any) -> Tree:
    if isinstance(value, Mapping) and len(value) > KEYS_MAX:
        kept = {_name(key): plain(value[key]) for key in sorted(value)[:KEYS_MAX]}
        return {**kept, "…": f"{len(value) - KEYS_MAX} more"}
    return plain(value)


def _name(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def _lines(name: str, value: Tree, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict) and value:
        yield f"{indent}{name}"
        for key, item in value.items():
            yield from _lines(str(key), item, depth + 1)
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else _timed(name, value)
        yield brief(f"{indent}{name}: {'-' if text in ('', None) or text == {} else text}", LINE_CHARS_MAX)


ENDPOINTS = (shows("/ui/log", "log_page", get_log, args=LogPage, waits=True),)
