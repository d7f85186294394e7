"""Pages from templates: every value is text in a page, never markup or script.

Scripts and styles are files of this package only; the headers forbid all others.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.responses import Response

from onyxq import __version__
from onyxq.core.ids import ms_of
from onyxq.core.texts import visible
from onyxq.history import words
from onyxq.history.attempts import attempt_ms
from onyxq.interfaces.http.endpoint import Call
from onyxq.system.durations import ago, span

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # With a stricter policy, browsers would not send the origin of forms.
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PAYLOAD_CHARS = 4_000
"""Most characters of data, a result or an error on a page."""
BEGINNING_BYTES, BEGINNING_CHARS = 400, 90
"""Most bytes and characters of data in a list."""

ENQUEUE = "onyxq task call tasks:send ann@example.org"
"""Command on empty pages."""

MENU = (
    (
        "Work",
        (
            ("/", "Overview"),
            ("/ui/tasks", "Tasks"),
            ("/ui/tasks?state=failed", "Failed"),
            ("/ui/queues", "Queues"),
            ("/ui/workers", "Workers"),
        ),
    ),
    ("Schedules", (("/ui/periodic", "Periodic"), ("/ui/timers", "Timers"))),
    ("Pipelines", (("/ui/flows", "Flows"), ("/ui/jobs", "Jobs"))),
    ("System", (("/ui/cluster", "Cluster"), ("/ui/log", "Log"), ("/ui/settings", "Settings"))),
)
"""Groups of pages: their name, and the address and name of each page."""


def page(call: Call, template: str, *, title: str, here: str, status: int = 200, **values: Any) -> Response:
    """Return a whole page; ``here``: its address in the menu."""
    known = {
        "title": title,
        "here": here,
        "menu": MENU,
        "version": __version__,
        "did": done(call.args),
        "now_ms": call.kit.now_ms(),
        "signed_in": call.owner != "",
        **values,
    }
    return rendered(template, status=status, **known)


def rendered(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return the answer made from a template."""
    text = ENVIRONMENT.get_template(template).render(values)
    return Response(text.encode(errors="replace"), status_code=status, headers=HEADERS, media_type="text/html")


def done(args: Any) -> str:
    """Return the effect of the last action in words. A link can only choose one of the known effects."""
    count, refused = getattr(args, "count", 0), getattr(args, "refused", 0)
    said = DONE.get(getattr(args, "did", ""), "").format(tasks=counted(count, "task"))
    if said and refused:
        why = "was left unchanged, because its state has changed since you chose it"
        if refused > 1:
            why = "were left unchanged, because their states have changed since you chose them"
        said += f" {counted(refused, 'task')} {why}."
    return said


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 task``, ``12 tasks``."""
    return f"{number(count)} {noun if count == 1 else plural or f'{noun}s'}"


DONE = {
    "pause": "The queue is paused.",
    "resume": "The queue is resumed.",
    "queue": "The settings of the queue are changed.",
    "requeue": "Requeued {tasks}.",
    "discard": "Discarded {tasks}.",
    "cancel": "Cancelled {tasks}.",
    "enqueue": "This task is enqueued.",
    "periodic-run": "This task is enqueued, besides those of the schedule.",
    "periodic-pause": "The periodic task is paused.",
    "periodic-resume": "The periodic task is resumed.",
    "periodic-remove": "The periodic task is removed. The tasks that it enqueued stay.",
    "timer-set": "The timer is set.",
    "timer-cancel": "The timer is cancelled.",
    "flow-cancel": "The flow is cancelled.",
    "flow-requeue": "The failed tasks of the flow are due again.",
    "seal": "The input is sealed.",
    "kill": "The job is killed.",
    "gc": "The log is trimmed.",
    "leave": "The peer is leaving.",
    "force": "The partition continues without the lost nodes.",
}
"""Action -> its effect in words."""


@frozen
class Tab:
    """A link of a page to a part of its list."""

    name: str
    address: str
    count: int | None = None
    """Number of things there; None while it is unknown."""
    is_current: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether there are failures."""
        return self.name == "failed" and bool(self.count)


def link(path: str, **query: Any) -> str:
    """Return an address with its query, without None and empty values."""
    known = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(known, quote_via=quote, errors='replace')}" if known else path


def number(value: Any) -> str:
    """Return a count with separated thousands."""
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def moment(ms: int | None) -> str:
    """Return a time to the second, UTC."""
    return "–" if ms is None else words.moment(ms).partition(".")[0]


def age(ms: int | None) -> str:
    """Return a duration; a dash for None."""
    return "–" if ms is None else words.duration(ms)


@pass_context
def when(context: Context, ms: int | None) -> str:
    """Return how long ago a time was, or how soon it is; the browser shows the exact time under the mouse."""
    if ms is None:
        return "–"
    markup = Markup('<time datetime="{}" title="{}">{}</time>')
    return markup.format(words.moment(ms).replace(" ", "T"), f"{moment(ms)} UTC", ago(ms, context["now_ms"]))


def text_of(data: bytes | None) -> str:
    """Return bytes for people: indented JSON, other text as it is, else hexadecimal."""
    if data is None:
        return "–"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "bytes, as hexadecimal digits: " + data[: PAYLOAD_CHARS // 2].hex()
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False) if len(text) <= PAYLOAD_CHARS else text
    except (ValueError, RecursionError):
        return text


def cut(text: str) -> str:
    """Return the beginning of a text, with the number of omitted characters."""
    left = len(text) - PAYLOAD_CHARS
    return text if left <= 0 else f"{text[:PAYLOAD_CHARS]}\n… {left} more characters"


def beginning(data: bytes | None) -> str:
    """Return the beginning of bytes, in one line."""
    if data is None:
        return "–"
    start = data[:BEGINNING_BYTES]
    if len(data) > len(start):
        with suppress(UnicodeDecodeError):
            start = getincrementaldecoder("utf-8")().decode(start).encode()  # without the first part of a character
    return words.brief(" ".join(text_of(start).split()), BEGINNING_CHARS)


def shown(value: Any) -> str:
    """Return a plain value for a cell."""
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
        "ago": ago,
        "id_moment": lambda task_id: moment(ms_of(task_id)),
        "span": lambda ms: "–" if ms is None else span(ms),
        "when": when,
        "counted": counted,
        "visible": visible,
        "words": words.title,
        "attempt": words.attempt,
        "attempt_ms": attempt_ms,
        "ending": words.ending,
        "callback": words.callback,
        "summary": words.summary,
        "worker_state": words.worker_state,
    }
    made.filters.update(filters)
    made.globals |= {"link": link, "ENQUEUE": ENQUEUE}
    return made


ENVIRONMENT = _environment()
