"""The planner of a stream of tasks while leaders are unavailable: the query continues, and no completion is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field
from pyspark.sql.streaming.datasource import ReadMaxRows

from onyxq.client.claims import ClaimBatch, ClaimedRun
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.spark.queues import queue_claims, source
from onyxq.spark.queues.options import read_options
from onyxq.spark.queues.queue_claims import Held
from onyxq.spark.queues.source import QueueStream

NOW_MS = 1_800_000_000_000
LIMIT = ReadMaxRows(100)
HELD = [Held(TaskId(make_id(NOW_MS, 1, 5, 0)), 10, 3)]


@define
class Leaders:
    """A connection with leaders that refuse the calls in ``refused``, by their names."""

    refused: set[str] = field(factory=set)
    completed: list[list[Held]] = field(factory=list)

    def call(self, call: Any) -> Any:
        """Answer a call of a client."""
        name = call.func.__name__ if isinstance(call, functools.partial) else "now_ms"
        if name in self.refused:
            raise Unavailable("partition 3 has no leader")
        if name == "complete":
            self.completed.append(call.keywords["held"])
            return 0
        return {"count": {"q": {"ready": 7}}, "claim_tasks": HELD, "now_ms": NOW_MS}[name]


@pytest.fixture
def leaders(monkeypatch: pytest.MonkeyPatch) -> Leaders:
    """The leaders of every stream of this test."""
    found = Leaders()
    monkeypatch.setattr(source, "connected", lambda target: found)
    return found


@pytest.fixture
def stream(leaders: Leaders) -> Iterator[QueueStream]:
    """A stream without a job."""
    found = QueueStream(read_options({"queue": "q", "connect": "peer:7400"}, streaming=True))
    yield found
    found.stop()


class Granting:
    """A client that grants one claim, and then refuses all."""

    def __init__(self, error: OnyxqError) -> None:
        self._error = error
        self._left = HELD

    async def claim(self, queues: Any, **more: Any) -> ClaimBatch:
        """Grant what is left."""
        if not self._left:
            raise self._error
        (one,), self._left = self._left, []
        return ClaimBatch([ClaimedRun(token=one.token, first=one.first, count=one.count)])


@pytest.mark.parametrize("error", [Unavailable("no leader"), TimedOut("too slow"), Overloaded("too many")])
def test_what_is_claimed_before_a_temporary_error_is_a_batch(error: OnyxqError) -> None:
    """Otherwise each look would claim tasks that wait until their leases end, and use up their attempts."""
    client: Any = Granting(error)

    async def claimed() -> list[Held]:
        return await queue_claims.claim_tasks(client, "q", most=100, worker="w", lease_ms=1_000)

    assert asyncio.run(claimed()) == HELD
    with pytest.raises(type(error)):
        asyncio.run(claimed())


def test_queues_that_are_claimed_before_a_temporary_error_are_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of many queues claims from a part of them at a time."""
    client = Granting(TimedOut("too slow"))

    class Link:
        def call(self, call: Any) -> Any:
            return asyncio.run(call(client))

    monkeypatch.setattr(source, "connected", lambda target: Link())
    monkeypatch.setattr(source, "QUEUES_MAX", 1)
    stream = QueueStream(read_options({"queue": "a,b", "connect": "peer:7400"}, streaming=True))
    assert stream._claim(20) == HELD
    with pytest.raises(TimedOut):
        stream._claim(20)


@pytest.mark.parametrize("refused", ["claim_tasks", "now_ms", "count"])
def test_a_query_runs_without_batches_while_leaders_are_unavailable(
    leaders: Leaders, stream: QueueStream, refused: str
) -> None:
    """Spark asks for the newest offset after it has planned a batch: an error there would end the query, too."""
    start = stream.initialOffset()
    leaders.refused = {refused}
    end = stream.latestOffset(start, LIMIT)
    assert (end == start) == (refused != "count")
    assert stream.reportLatestOffset() == (None if refused == "count" else {"onyxq": 1, "ready": 7})
    leaders.refused = set()
    assert stream.latestOffset(start, LIMIT)["n"] == 1
    assert stream.reportLatestOffset() == {"onyxq": 1, "ready": 7}


def test_a_batch_that_cannot_be_completed_now_is_completed_later(leaders: Leaders, stream: QueueStream) -> None:
    """Until then no further batch is planned."""
    end = stream.latestOffset(stream.initialOffset(), LIMIT)
    leaders.refused = {"complete"}
    stream.commit(end)
    assert stream.latestOffset(end, LIMIT) == end
    leaders.refused = set()
    assert stream.latestOffset(end, LIMIT)["n"] == 2
    assert leaders.completed == [HELD]


def test_a_stream_of_what_is_there_now_fails_without_leaders(leaders: Leaders, stream: QueueStream) -> None:
    """It would end without an error, and leave tasks."""
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    leaders.refused = {"claim_tasks"}
    with pytest.raises(Unavailable):
        stream.latestOffset(start, LIMIT)
    leaders.refused = {"count"}
    with pytest.raises(Unavailable):
        stream.prepareForTriggerAvailableNow()
