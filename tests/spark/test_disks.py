"""If a job writes to several places, the full one is named."""

from __future__ import annotations

import shutil
from collections import namedtuple

import pytest
from attrs import evolve

from onyxq.spark import failures
from onyxq.spark.failures import Failure

Usage = namedtuple("Usage", "total used free")
FULL = Failure("StreamingQueryException: terminated: java.io.IOException: No space left on device SQLSTATE: XXKST")


@pytest.fixture(autouse=True)
def usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the usage of a full disk, of one with room, and of one that cannot be asked."""
    rooms = {"/full": 3 << 10, "/empty": 1 << 30}

    def asked(path: str) -> Usage:
        if path not in rooms:
            raise FileNotFoundError(path)
        return Usage(1 << 30, 0, rooms[path])

    monkeypatch.setattr(shutil, "disk_usage", asked)


def test_the_place_that_is_full_is_named_with_what_it_is() -> None:
    """It is named as a path or a URI; other places are not mentioned."""
    places = {"its checkpoint": "file:///full", "output a": "/empty", "output b": "s3://bucket/b"}
    told = failures.with_full_disks(FULL, places)
    assert told.error == (
        "No space left on device: its checkpoint (file:///full) has 3 KiB left. "
        "Once there is room the job continues after its last batch."
    )
    assert told.restart


@pytest.mark.parametrize(
    ("failure", "places"),
    [
        (FULL, {"its checkpoint": "/empty", "output a": "s3://bucket/a"}),
        (evolve(FULL, error="connection refused"), {"its checkpoint": "/full"}),
        (evolve(FULL, task="f"), {"its checkpoint": "/full"}),
    ],
)
def test_what_is_not_known_to_be_so_is_not_said(failure: Failure, places: dict[str, str]) -> None:
    """No place is full, there was another error, or a user's own function wrote elsewhere."""
    assert failures.with_full_disks(failure, places) == failure


def test_a_quota_is_a_full_disk_too() -> None:
    """This holds if only the traceback shows it."""
    said = evolve(FULL, error="FSError", traceback="Caused by: java.io.IOException: Disk quota exceeded")
    assert failures.with_full_disks(said, {"output a": "/full"}).error.startswith(
        "Disk quota exceeded: output a (/full) has 3 KiB"
    )
