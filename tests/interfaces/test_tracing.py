"""Traces with OpenTelemetry: one trace from the enqueue through the log to every attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx
import opentelemetry.trace
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from onyxq import App, AsyncClient, Client, context
from onyxq.client.flows import Step
from onyxq.errors import BadRequest
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.system import tracing
from tests.interfaces.live_world import running
from tests.interfaces.worker_tasks import app as there

HEADER = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
app = App()
held: list[str | None] = []


@app.task(queue="traced", retries=1, backoff_ms=1)
async def flaky() -> None:
    """Fail at first, then enqueue a following task."""
    if context().attempt == 1:
        raise ValueError("not yet")
    await follow.enqueue_async()


@app.task(queue="traced")
def follow() -> None:
    """Return the trace that a function in a thread sees."""
    held.append(tracing.carried())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Run a peer with HTTP in this process, so its spans are visible here too."""
    with running(http=True) as started:
        yield started


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Return the spans that this process exports."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    return exporter


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the spans of a name, in the order of their starts."""
    return sorted((one for one in exporter.get_finished_spans() if one.name == name), key=lambda one: one.start_time)


def parent_of(span: ReadableSpan) -> int:
    """Return the id of its parent span."""
    assert span.parent is not None
    return span.parent.span_id


def traceparent(span: ReadableSpan) -> str:
    """Return the W3C form."""
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def work_until(cluster: LocalCluster, application: App, done: Callable[[], bool]) -> None:
    """Let a worker work until a condition holds."""

    async def main() -> None:
        worker = application.worker(concurrency=2)
        async with AsyncClient(cluster.addresses[0]) as client, anyio.create_task_group() as group:
            group.start_soon(worker.serve, client)
            with anyio.fail_after(60):
                while not done():
                    await anyio.sleep(0.01)
            worker.stop()

    anyio.run(main, backend="trio")


def test_a_trace_holds_the_enqueueing_each_grant_and_each_attempt(
    cluster: LocalCluster, spans: InMemorySpanExporter
) -> None:
    """It also has tasks that an attempt enqueues."""
    app.address = cluster.addresses[0]
    held.clear()
    tracer = opentelemetry.trace.get_tracer("test")
    with tracer.start_as_current_span("request") as request:
        task_id = flaky.enqueue()
    work_until(cluster, app, lambda: bool(held) and len(named(spans, "process follow")) == 1)
    app.close()

    sent = named(spans, "send traced")
    first, second = named(spans, "process flaky")
    (after,) = named(spans, "process follow")
    assert {one.context.trace_id for one in (*sent, first, second, after)} == {request.get_span_context().trace_id}
    assert parent_of(sent[0]) == request.get_span_context().span_id
    assert parent_of(first) == parent_of(second) == sent[0].context.span_id
    assert (parent_of(sent[1]), parent_of(after)) == (second.context.span_id, sent[1].context.span_id)
    assert (sent[0].kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert first.events[0].name == "exception"
    assert held == [traceparent(after)]

    grants = named(spans, "grant traced")
    assert [parent_of(one) for one in grants] == [sent[0].context.span_id] * 2 + [sent[1].context.span_id]
    for grant, attempt in zip(grants, (first, second, after), strict=True):
        assert grant.attributes is not None and attempt.attributes is not None
        assert grant.attributes["onyxq.position"] == attempt.attributes["onyxq.token"]
        assert grant.attributes["messaging.message.id"] == attempt.attributes["messaging.message.id"]
        assert grant.start_time <= attempt.start_time
    assert first.attributes is not None and first.attributes["messaging.message.id"] == task_id.hex()
    assert [one.attributes and one.attributes["onyxq.attempt"] for one in (first, second)] == [1, 2]


def test_a_request_of_another_language_belongs_to_its_trace(cluster: LocalCluster, spans: InMemorySpanExporter) -> None:
    """The header ``traceparent`` or a task's field names it; invalid and unsampled ones are ignored."""

    def enqueue(headers: dict[str, str], **more: Any) -> str | None:
        url = f"http://{cluster.http_addresses[0]}/v1/tasks"
        answer = httpx.post(url, json={"tasks": [{"queue": "foreign", **more}]}, headers=headers)
        assert answer.status_code == 201, answer.text
        with Client(cluster.addresses[0]) as client:
            (claim,) = client.claim(["foreign"], wait_ms=20_000)
            client.complete(claim)
            return claim.trace

    other = HEADER.replace("ab", "ef")
    assert enqueue({"traceparent": HEADER}) == HEADER
    assert enqueue({"traceparent": HEADER}, trace=other) == other
    assert enqueue({}, trace=other) == other
    assert enqueue({}) is None
    assert enqueue({"traceparent": HEADER[:-1] + "0"}) is None
    assert enqueue({"traceparent": "00-" + "0" * 32 + HEADER[35:]}) is None
    url = f"http://{cluster.http_addresses[0]}/v1/tasks"
    answer = httpx.post(url, json={"tasks": [{"queue": "foreign", "trace": "yesterday"}]})
    assert (answer.status_code, answer.json()["field"]) == (400, "tasks[0].trace")


def test_a_process_of_its_own_takes_over_the_trace(
    cluster: LocalCluster, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the attempt's span; it may export spans of its own or not."""
    told: list[str | None] = []
    from onyxq.worker import processes

    def run(child: processes._Child, work: processes.Work) -> None:
        told.append(work.trace)
        original(child, work)

    original = processes._Child.run
    monkeypatch.setattr(processes._Child, "run", run)
    there.address = cluster.addresses[0]
    there.tasks["pid"].enqueue(1)
    work_until(cluster, there, lambda: len(named(spans, "process pid")) == 1)
    there.close()
    (attempt,) = named(spans, "process pid")
    assert told == [traceparent(attempt)]
    with tracing.within(told[0]):
        assert tracing.carried() == told[0]
    assert tracing.carried() is None


def test_flows_and_transactions_carry_the_trace(cluster: LocalCluster, spans: InMemorySpanExporter) -> None:
    """The trace is that of the span in which they are built."""
    tracer = opentelemetry.trace.get_tracer("test")
    with Client(cluster.addresses[0]) as client:
        with tracer.start_as_current_span("flow"):
            trace = tracing.carried()
            client.chain(Step("flowing", b"1"), Step("flowing", b"2")).enqueue()
            with client.transaction() as tx:
                tx.enqueue("flowing", b"3")
        found = []
        while len(found) < 3:
            for claim in client.claim(["flowing"], max=3, wait_ms=20_000):
                found.append(claim.trace)
                client.complete(claim)
    assert found == [trace] * 3


def test_nothing_is_traced_without_a_provider(cluster: LocalCluster) -> None:
    """With and without OpenTelemetry, nothing is stored or measured."""
    assert tracing.carried() is None and tracing.clock() == 0
    with tracing.enqueuing("q", 1) as trace:
        assert trace is None
    with Client(cluster.addresses[0]) as client:
        client.enqueue("plain", b"")
        (claim,) = client.claim(["plain"], wait_ms=20_000)
        client.complete(claim)
    assert claim.trace is None


def test_a_trace_that_is_not_sampled_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """So tasks of unsampled traces stay in runs together."""
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", TracerProvider(sampler=ALWAYS_OFF))
    with tracing.enqueuing("q", 1) as trace:
        assert trace is None


@pytest.mark.parametrize("trace", ["", HEADER.upper(), HEADER + "0", HEADER.replace("cd", "00"), "01" + HEADER[2:]])
def test_what_is_no_traceparent_is_refused(trace: str) -> None:
    """Before anything is sent, with the field named."""
    with pytest.raises(BadRequest) as caught:
        Step("q", b"", trace=trace)
    assert caught.value.field == "trace"
