"""Pages from templates: whatever a value holds stands in a page as text, never as markup or script.

Scripts and styles come as files of this package only; the headers forbid all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from onyxq import __version__
from onyxq.core.texts import visible
from onyxq.history import words
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.values import plain

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # with less, browsers would not name the origin of forms
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PAYLOAD_CHARS = 4_000
"""Of data, a result or an error that a page shows at once."""
BEGINNING_BYTES, BEGINNING_CHARS = 400, 90
"""Of data in a list."""

MENU = (
    ("/", "Overview"),
    ("/ui/queues", "Queues"),
    ("/ui/tasks", "Tasks"),
    ("/ui/dead", "Dead letters"),
    ("/ui/workers", "Workers"),
    ("/ui/timers", "Timers"),
    ("/ui/periodic", "Periodic"),
    ("/ui/jobs", "Jobs"),
    ("/ui/cluster", "Cluster"),
    ("/ui/log", "Log"),
    ("/ui/settings", "Settings"),
)


def page(call: Call, template: str, *, title: str, here: str, status: int = 200, **values: Any) -> Response:
    """A whole page; ``here``: the address in the menu that it belongs to."""
    known = {
        "title": title,
        "here": here,
        "menu": MENU,
        "version": __version__,
        "did": done(call.args),
        "signed_in": call.owner != "",
        **values,
    }
    return rendered(template, status=status, **known)


def rendered(template: str, *, status: int = 200, **values: Any) -> Response:
    """The answer made of a template."""
    text = ENVIRONMENT.get_template(template).render(values)
    return Response(text.encode(errors="replace"), status_code=status, headers=HEADERS, media_type="text/html")


def done(args: Any) -> str:
    """What the action did that led here, in words that are ours: a link can choose among them, and say nothing else."""
    said = DONE.get(getattr(args, "did", ""), "")
    return said.format(count=getattr(args, "count", 0))


DONE = {
    "pause": "The queue is paused.",
    "resume": "The queue goes on.",
    "queue": "The queue's settings are changed.",
    "requeue": "{count} dead letters run again.",
    "discard": "{count} dead letters are discarded.",
    "cancel": "The task is cancelled.",
    "periodic-pause": "The periodic task is paused.",
    "periodic-resume": "The periodic task goes on.",
    "periodic-remove": "The periodic task is removed; the tasks that it made stay.",
    "timer-cancel": "The timer is cancelled.",
    "seal": "The input is sealed.",
    "kill": "The job is killed.",
    "gc": "The log is collected.",
    "leave": "The peer was told to leave.",
    "force": "The partition goes on without the nodes that are lost.",
}
"""By action, what it did."""


def link(path: str, **query: Any) -> str:
    """An address with its query; what is None or empty is left out."""
    known = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(known, quote_via=quote, errors='replace')}" if known else path


def number(value: Any) -> str:
    """A count with its thousands apart."""
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def moment(ms: int | None) -> str:
    """A time to the second, UTC."""
    return "–" if ms is None else words.moment(ms).partition(".")[0]


def age(ms: int | None) -> str:
    """A duration; a dash if there is none."""
    return "–" if ms is None else words.duration(ms)


def text_of(data: bytes | None) -> str:
    """Bytes as people read them: JSON set out, other text as it is, else as hexadecimal."""
    if data is None:
        return "–"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "bytes, in hexadecimal: " + data[: PAYLOAD_CHARS // 2].hex()
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) if len(text) <= PAYLOAD_CHARS else text
    except (ValueError, RecursionError):
        return text


def cut(text: str) -> str:
    """A text's beginning, with how much is left out."""
    left = len(text) - PAYLOAD_CHARS
    return text if left <= 0 else f"{text[:PAYLOAD_CHARS]}\n… {left} characters more"


def beginning(data: bytes | None) -> str:
    """The beginning of bytes, in one line."""
    return "–" if data is None else words.brief(" ".join(text_of(data[:BEGINNING_BYTES]).split()), BEGINNING_CHARS)


def shown(value: Any) -> str:
    """A plain value in a cell."""
    if value is None or value in ("", [], {}):
        return "–"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return number(value) if isinstance(value, int) else str(value)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("onyxq.interfaces.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: dict[str, Callable[..., Any]] = {
        "number": number,
        "moment": moment,
        "age": age,
        "text_of": text_of,
        "shown": shown,
        "brief": words.brief,
        "beginning": beginning,
        "cut": cut,
        "plain": plain,
        "visible": visible,
        "words": words.title,
    }
    made.filters.update(filters)
    made.globals["link"] = link
    return made


ENVIRONMENT = _environment()
