"""The planner of a stream of tasks while leaders are unavailable: the query continues, and no completion is lost."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field
from pyspark.sql.streaming.datasource import ReadMaxRows

from onyxq.core.ids import TaskId, make_id
from onyxq.errors import Unavailable
from onyxq.spark.queues import source
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
