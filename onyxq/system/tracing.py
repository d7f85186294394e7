"""Traces of tasks with OpenTelemetry: from whoever enqueues, through the log, to the attempts.

Nothing here starts or configures OpenTelemetry: a process takes part in traces once it has set
a tracer provider, as ``opentelemetry-instrument`` does, and this module is idle until then.
The context travels in the task's header as W3C ``traceparent``, if the trace is sampled; tasks
of one header are one run, so those of different traces are stored apart.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

from onyxq.core.errors import BadRequest

SYSTEM = "onyxq"
TRACEPARENT = re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""Version, trace, span, flags (source: W3C Trace Context, level 1)."""
SAMPLED = 1


def is_traceparent(value: Any) -> TypeGuard[str]:
    """Whether it is one, of the version that there is."""
    return isinstance(value, str) and TRACEPARENT.fullmatch(value) is not None


def sampled(trace: str) -> bool:
    """Whether a ``traceparent`` says that its trace is kept."""
    return bool(int(trace[-2:], 16) & SAMPLED)


def check_traceparent(value: Any) -> None:
    """Raise `BadRequest` for what is none."""
    if not is_traceparent(value):
        raise BadRequest("trace is a W3C traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>", field="trace")


def carried() -> str | None:
    """The present span as a ``traceparent``, if there is one and its trace is sampled."""
    api = _api()
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    if not context.is_valid or not context.trace_flags & SAMPLED:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def enqueuing(queue: str, tasks: int) -> Iterator[str | None]:
    """A span in which tasks are enqueued; gives what their headers are to carry."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    attributes = _about(queue, "send") | {"messaging.batch.message_count": tasks}
    with tracer.start_as_current_span(f"send {queue}", kind=_api().SpanKind.PRODUCER, attributes=attributes):
        yield carried()


@contextmanager
def attempting(trace: str | None, *, queue: str, task_id: bytes, token: int, attempt: int) -> Iterator[None]:
    """A span of one attempt at a task, which follows on the one that ``trace`` names; errors are kept in it."""
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
    """The present attempt is at a task of an application, of this name."""
    api = _api()
    if api is not None:
        span = api.get_current_span()
        span.update_name(f"process {name}")
        span.set_attribute("onyxq.task", name)


@contextmanager
def within(trace: str | None) -> Iterator[None]:
    """What is done here belongs to a span of another process."""
    api, context = _api(), None if trace is None else _context(trace)
    if api is None or context is None:
        yield
        return
    with api.use_span(api.get_current_span(context)):
        yield


def clock() -> int:
    """The time that spans have, in ns; 0 while traces are off."""
    return 0 if _api() is None else time.time_ns()


def granted(began_ns: int, position: int, tasks: Iterable[tuple[bytes, Mapping[str, Any]]]) -> None:
    """A span for each task, given by id and header, that carries a trace: its way through the log, to a grant."""
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
    """What spans say of messages (source: OpenTelemetry's semantic conventions for messaging)."""
    return {"messaging.system": SYSTEM, "messaging.operation.type": operation, "messaging.destination.name": queue}


def _api() -> Any:
    """OpenTelemetry's interface for traces, once the process has a provider; without it nobody would see a span."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api


def _tracer() -> Any:
    api = _api()
    return None if api is None else api.get_tracer(SYSTEM)


def _context(trace: Any) -> Any:
    """The remote span that a header names; None: a trace of its own."""
    api = _api()
    if api is None or not is_traceparent(trace):
        return None
    _, trace_id, span_id, flags = trace.split("-")
    kept = api.TraceFlags(int(flags, 16))
    there = api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=kept)
    return api.set_span_in_context(api.NonRecordingSpan(there))
