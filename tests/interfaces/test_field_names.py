"""An error names its field once, and has the rule that the value breaks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.client.policy import Policy
from onyxq.errors import BadRequest
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.worker.options import Options


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay_ms": -5}, "delay_ms must be a whole number of milliseconds, 0 or more, not -5"),
        ({"priority": 1.5}, "priority must be a whole number from -2147483648 to 2147483647, not 1.5"),
        ({"retries": "x"}, "retries must be a whole number from 0 to 1000000, or None for no limit, not 'x'"),
        ({"on_dependency_failed": "hope"}, "on_dependency_failed must be one of fail, cancel, run, not 'hope'"),
        (
            {"expires_ms": "1" * 200},
            "expires_ms must be a time in milliseconds since the epoch, not '" + "1" * 78 + "…",
        ),
    ],
)
def test_a_wrong_option_is_shown_with_what_was_expected(options: dict[str, Any], said: str) -> None:
    """A long value is cut."""
    with pytest.raises(BadRequest) as refused:
        Policy.of("q", options)[0].check()
    assert (refused.value.message, refused.value.field) == (said, next(iter(options)))


def test_a_wrong_option_of_a_function_is_shown() -> None:
    """It has the same form as an option of a call."""
    with pytest.raises(BadRequest, match="^timeout_s must be a number of seconds above 0, up to 30 days, not -1$"):
        Options.of({"timeout_s": -1}).check(lambda: None)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_bad_fields_of_a_task_are_refused_with_the_rule(tmp_path: Path) -> None:
    """Examples are a tab in a key, an unknown word, and a number out of range."""
    bad = {"ordering_key": "a\tb", "unique_key": "a\nb", "on_dependency_failed": "hope", "priority": 1 << 40}
    rules = ("control characters", "control characters", "fail", "not 1099511627776")
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
