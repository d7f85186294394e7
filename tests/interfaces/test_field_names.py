"""An error names its field once, and has the rule that the value breaks."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import BadRequest
from onyxq.interfaces.local_cluster import LocalCluster


@pytest.mark.parametrize(
    ("field", "message", "named"),
    [
        (None, "no", "no"),
        ("w", "w must be 1 to 9", "w must be 1 to 9"),
        ("tasks[0].priority", "priority must be an integer", "tasks[0].priority must be an integer"),
        ("file", "No such file", "file: No such file"),
        ("at", "attempts are counted", "at: attempts are counted"),
    ],
)
def test_a_field_is_named_once(field: str | None, message: str, named: str) -> None:
    """The full name comes first, whatever the message begins with."""
    assert BadRequest(message, field=field).named() == named


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_bad_fields_of_a_task_are_refused_with_the_rule(tmp_path: Path) -> None:
    """Examples are a tab in a key, an unknown word, and a number out of range."""
    bad = {"ordering_key": "a\tb", "unique_key": "a\nb", "on_dependency_failed": "hope", "priority": 1 << 40}
    rules = ("control characters", "control characters", "fail", "signed 32-bit number")
    async with LocalCluster(peers=1, data=str(tmp_path)) as cluster, AsyncClient(cluster.addresses[0]) as client:
        for (name, value), rule in zip(bad.items(), rules, strict=True):
            with pytest.raises(BadRequest, match=rule) as refused:
                await client.enqueue("q", b"x", **{name: value})
            assert name in (refused.value.field or "")
        assert (await client.count("q")).get("q", {"total": 0})["total"] == 0


def test_settings_that_cannot_change_any_more_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that is started with other values than the cluster's reports them."""

    async def start(absent_after_ms: int) -> None:
        async with LocalCluster(peers=1, data=str(tmp_path), first={"absent_after_ms": absent_after_ms}):
            pass

    with caplog.at_level(logging.WARNING):
        trio.run(start, 5_000)
        assert "is not used" not in caplog.text
        trio.run(start, 7_000)
    assert "absent_after_ms 7000 is not used: cluster main was created with 5000" in caplog.text
