"""Traces of tasks with OpenTelemetry: from the enqueuing client, through the log, to the attempts.

Nothing here starts or configures OpenTelemetry.  A process takes part in traces once it has set
a tracer provider, as ``opentelemetry-instrument`` does.  Until then this module is idle.
The context travels in the task's header as W3C ``traceparent``, if the trace is sampled.  Tasks
with one header are one run, so tasks of different traces are stored apart.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

from onyxq.core.errors import BadRequest
from onyxq.core.limits import TRACEPARENT

SYSTEM = "onyxq"
_TRACEPARENT = re.compile(TRACEPARENT)
SAMPLED = 1


def is_traceparent(value: Any) -> TypeGuard[str]:
    """Return whether a value is a ``traceparent`` of the existing version."""
    return isinstance(value, str) and _TRACEPARENT.fullmatch(value) is not None


def sampled(trace: str) -> bool:
    """Return whether a ``traceparent`` marks its trace as sampled."""
    return bool(int(trace[-2:], 16) & SAMPLED)


def check_traceparent(value: Any) -> None:
    """Raise `BadRequest` unless the value is a ``traceparent``."""
    if not is_traceparent(value):
        raise BadRequest("trace is a W3C traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>", field="trace")


def carried() -> str | None:
    """Return the present span as a ``traceparent``, if there is one and its trace is sampled."""
    api = _api()
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags & SAMPLED:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def enqueuing(queue: str, tasks: int) -> Iterator[str | None]:
    """Enqueue tasks in a span; the context value is the ``traceparent`` for their headers, or None."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    attributes = _about(queue, "send") | {"messaging.batch.message_count": tasks}
    with tracer.start_as_current_span(f"send {queue}", kind=_api().SpanKind.PRODUCER, attributes=attributes):
        yield carried()


@contextmanager
def attempting(trace: str | None, *, queue: str, task_id: bytes, token: int, attempt: int) -> Iterator[None]:
    """Attempt a task in a span that follows the one that ``trace`` names; it records errors."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    attributes = _about(queue, "process") | {
        "messaging.message.id": task_id.hex(),
        "onyxq.token": token,
        "onyxq.attempt": attempt,
    }
    with tracer.start_as_current_span(
        f"process {queue}", context=_context(trace), kind=_api().SpanKind.CONSUMER, attributes=attributes
    ):
        yield


def name_attempt(name: str) -> None:
    """Name the present attempt after the application's task."""
    api = _api()
    if api is not None:
        span = api.get_current_span()
        span.update_name(f"process {name}")
        span.set_attribute("onyxq.task", name)


@contextmanager
def within(trace: str | None) -> Iterator[None]:
    """Do the work inside as part of another process's span."""
    api, context = _api(), None if trace is None else _context(trace)
    if api is None or context is None:
        yield
        return
    with api.use_span(api.get_current_span(context)):
        yield


def clock() -> int:
    """Return the time that spans have, in ns; 0 while traces are off."""
    return 0 if _api() is None else time.time_ns()


def granted(began_ns: int, position: int, tasks: Iterable[tuple[bytes, Mapping[str, Any]]]) -> None:
    """Record a span for each task with a trace: its way through the log, to a grant.

    ``tasks``: id and header of each task; ``began_ns``: start of the span.
    """
    tracer = _tracer()
    if tracer is None or not began_ns:
        return
    for task_id, header in tasks:
        context = _context(header.get("trace"))
        if context is None:
            continue
        queue = str(header.get("queue", ""))
        attributes = _about(queue, "receive") | {"messaging.message.id": task_id.hex(), "onyxq.position": position}
        tracer.start_span(f"grant {queue}", context=context, attributes=attributes, start_time=began_ns).end()


def _about(queue: str, operation: str) -> dict[str, Any]:
    """Return the attributes of spans about messages.

    Source: OpenTelemetry's semantic conventions for messaging.
    """
    return {"messaging.system": SYSTEM, "messaging.operation.type": operation, "messaging.destination.name": queue}


def _api() -> Any:
    """Return OpenTelemetry's interface for traces, or None if the process has no provider to export spans."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api


def _tracer() -> Any:
    api = _api()
    return None if api is None else api.get_tracer(SYSTEM)


def _context(trace: Any) -> Any:
    """Return the remote span that a header names; None: the task has a trace of its own."""
    api = _api()
    if api is None or not is_traceparent(trace):
        return None
    _, trace_id, span_id, flags = trace.split("-")
    kept = api.TraceFlags(int(flags, 16))
    there = api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=kept)
    return api.set_span_in_context(api.NonRecordingSpan(there))
