"""Spark's reports of batches in the form that peers add up, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from onyxq.spark.progress import Use, report


def said(**source: Any) -> dict[str, Any]:
    """Return Spark's report of a batch that read one topic of Kafka."""
    clicks = {"numInputRows": 6, "startOffset": {"clicks": {"0": 4, "1": 5}}, **source}
    return {"batchId": 3, "timestamp": "2026-11-28T10:00:00.000Z", "numInputRows": 6, "sources": [clicks]}


@pytest.mark.parametrize(
    ("latest", "lag"),
    [
        ({"clicks": {"0": 10, "1": 9}}, 0),
        ({"clicks": {"0": 13, "1": 9}}, 3),
        ({"clicks": {"0": 10, "1": 9, "2": 7}}, 7),
        ({"clicks": {"0": 8, "1": 9}}, 0),
        ({"clicks": {"0": 11, "1": 9}, "orders": {"0": 2}}, 3),
    ],
)
def test_the_lag_of_a_topic_is_what_lies_beyond_the_batch(latest: dict[str, Any], lag: int) -> None:
    """New partitions and topics count from their first message; a topic that was made again has no negative lag."""
    found = report(said(endOffset={"clicks": {"0": 10, "1": 9}}, latestOffset=latest), [Use("clicks")])
    assert (found["lags"], found["inputs"], found["batch"]) == ({"clicks": lag}, {"clicks": 6}, 3)


@pytest.mark.parametrize(
    "source",
    [
        {"endOffset": {"clicks": {"0": 10}}},
        {"endOffset": {"clicks": {"0": 10}}, "latestOffset": None},
        {"endOffset": {"logOffset": 7}, "latestOffset": None},
        {"endOffset": {"onyxq": 1, "n": 2}, "latestOffset": {"onyxq": 1, "ready": 7}},
        {"endOffset": "12", "latestOffset": "15"},
    ],
)
def test_other_sources_have_no_lag(source: dict[str, Any]) -> None:
    """Spark reports the newest offset of a few sources only; peers count the tasks of queues themselves."""
    assert report(said(**source), [Use("clicks")])["lags"] == {}
