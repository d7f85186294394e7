"""The status page: what the replica says, and how jobs get on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from onyxq.errors import OnyxqError
from onyxq.http.job_rows import jobs_table
from onyxq.http.pages import page, table
from onyxq.http.problems import title_of
from onyxq.words import duration

TITLES = {"job.list": "Jobs"}


def status_page(found: Mapping[str, Any]) -> str:
    """What the replica says, from the results of methods by name (or their errors)."""
    parts = ['<h1>OnyxQ</h1><p><a href="docs">HTTP interface</a> · <a href="metrics">metrics</a></p>']
    renderers: dict[str, Callable[[Any], str]] = {
        "health": _pairs,
        "cluster": _pairs,
        "queues": _queues,
        "job.list": lambda value: jobs_table(value["jobs"]),
        "peers": _inner("peers"),
        "ring": _inner("members"),
        "partitions": _inner("partitions"),
    }
    for name, value in found.items():
        parts.append(f"<h2>{escape(TITLES.get(name) or title_of(name))}</h2>")
        if isinstance(value, OnyxqError):
            parts.append(f"<p>{escape(value.message)} <span class=dim>{escape(value.advice)}</span></p>")
        else:
            parts.append(renderers[name](value))
    return page("OnyxQ", "".join(parts), kind="wide")


def _inner(key: str) -> Callable[[Any], str]:
    return lambda value: _rows(value[key])


def _pairs(value: Mapping[str, Any]) -> str:
    rows: list[tuple[str, Any]] = []
    for key, item in value.items():
        nested = item.items() if isinstance(item, dict) else [("", item)]
        rows += [(f"{key}.{inner}" if inner else key, cell) for inner, cell in nested]
    return table(("", ""), rows)


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    heads = list(rows[0])
    return table(heads, [[row.get(head) for head in heads] for row in rows])


def _queues(value: Mapping[str, Any]) -> str:
    return _rows([_queue(row) for row in value["queues"]])


def _queue(row: Mapping[str, Any]) -> dict[str, Any]:
    paused = row.get("settings", {}).get("paused", False)
    oldest_ms = row.get("oldest_ready_ms")
    oldest = None if oldest_ms is None else duration(oldest_ms)
    return {"queue": row["queue"], **row["depth"], "oldest ready": oldest, "paused": paused}
