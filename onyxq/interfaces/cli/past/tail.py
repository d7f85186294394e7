"""``onyxq log tail`` and ``log show``: records of the log in words, with the outcome of each entry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from onyxq.core.diff import plain
from onyxq.core.errors import NotFound
from onyxq.core.step import Step
from onyxq.history.archive import best
from onyxq.history.replay import replay
from onyxq.history.words import sentence
from onyxq.interfaces.cli.context import Context, clock
from onyxq.interfaces.cli.past.sources import pieces

if TYPE_CHECKING:
    from onyxq.client import Client

TAIL_RECORDS = 20
TAIL_PAGE = 500
TAIL_PAUSE_S = 0.3
ALIKE_MAX = 4
"""Most entries of one kind in a record that ``log tail`` prints."""


def log_tail(context: Context) -> None:
    """Print the newest records, or those from a position on; with ``--follow`` until interrupted."""
    args, limit = context.args, context.limit()
    with context.client() as client:
        start, left = args.start, limit
        if start is None:
            count = limit or TAIL_RECORDS
            newest = client.call("log", {"from": None, "limit": min(count, TAIL_RECORDS) if args.follow else count})
            for record in newest["records"]:
                _print_record(context, record)
            start = max([newest["position"], *(one["position"] for one in newest["records"])]) + 1
            left = None if limit is None else limit - len(newest["records"])
            if not args.follow or left == 0:
                return
        for record in _records_from(context, client, start, follow=args.follow):
            _print_record(context, record)
            left = None if left is None else left - 1
            if left == 0:
                return


def log_show(context: Context) -> None:
    """Print one record; raises `NotFound` if the position has none, or it is trimmed."""
    position = context.args.position
    with context.client() as client:
        found = next(_records_from(context, client, position, follow=False), None)
    if found is None or found["position"] != position:
        raise NotFound(
            f"there is no record at {position}",
            field="position",
            hint="Check the position: onyxq log tail. For trimmed records, give --archive DIR.",
        )
    if context.out.as_json:
        context.out.document(_shown(found))
    else:
        _print_record(context, found, alike_max=len(found["entries"]))


def _records_from(context: Context, client: Client, start: int, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Yield records with verdicts from ``start`` on. Records that the peer no longer remembers are replayed here."""
    checked_old = False
    while True:
        page = client.call("log", {"from": start, "limit": TAIL_PAGE})
        found = page["records"]
        if not checked_old and start <= page["position"] and (not found or found[0]["position"] > start):
            upto = found[0]["position"] - 1 if found else page["position"]
            yield from _stepped(context, client, start, upto)
        checked_old = True
        for record in found:
            yield record
            start = record["position"] + 1
        if not found:
            if not follow:
                return
            time.sleep(TAIL_PAUSE_S)


def _stepped(context: Context, client: Client, start: int, upto: int) -> Iterator[dict[str, Any]]:
    """Yield records with verdicts by replaying them; skip those that are trimmed."""
    known = pieces(context, client)
    dump = best(known, start - 1)
    if dump is None:
        starts = [one.start for one in known if one.start is not None and start <= one.start < upto]
        if not starts:
            return
        context.out.note(f"records {start} to {min(starts)} are trimmed")
        dump = best(known, min(starts))
        assert dump is not None
    for done in replay(dump, upto):
        if done.replica.position >= start:
            yield _as_answer(done)


def _as_answer(done: Step) -> dict[str, Any]:
    """Return a step in the form of the operation ``log``."""
    return {
        "position": done.replica.position,
        "at_ms": done.ctime_ms,
        "peer": done.peer,
        "problem": done.problem or None,
        "entries": [{"entry": one.name, "args": plain(one.args), "verdict": one.verdict} for one in done.outcomes],
    }


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {**plain(one), "words": sentence(one["entry"], one["args"], one["verdict"])} for one in record["entries"]
    ]
    return {**plain({**record, "entries": None}), "entries": entries}


def _print_record(context: Context, record: dict[str, Any], *, alike_max: int = ALIKE_MAX) -> None:
    shown = _shown(record)
    lines = [f"{shown['position']}  {clock(shown['at_ms'])}  {shown['peer'] or '(unknown writer)'}"]
    if shown.get("problem"):
        lines[0] += f"  no effect: {shown['problem']}"
    elif not shown["entries"]:
        lines[0] += "  no entries, only the time"
    for (name, verdict), alike in groupby(shown["entries"], key=lambda one: (one["entry"], one["verdict"])):
        some = list(alike)
        lines += [f"  {name} ({verdict}): {one['words']}" for one in some[:alike_max]]
        if len(some) > alike_max:
            lines.append(f"  and {len(some) - alike_max} more {name} ({verdict})")
    context.out.line(shown, "\n".join(lines))
