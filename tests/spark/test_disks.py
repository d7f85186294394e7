"""Of the places that a job writes to, the one that is full is named."""

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
    """A disk that is full, one that is not, and one that nobody can ask."""
    rooms = {"/full": 3 << 10, "/empty": 1 << 30}

    def asked(path: str) -> Usage:
        if path not in rooms:
            raise FileNotFoundError(path)
        return Usage(1 << 30, 0, rooms[path])

    monkeypatch.setattr(shutil, "disk_usage", asked)


def test_the_place_that_is_full_is_named_with_what_it_is() -> None:
    """As a path or a URI of one; others are not spoken of."""
    places = {"its checkpoint": "file:///full", "output a": "/empty", "output b": "s3://bucket/b"}
    told = failures.with_full_disks(FULL, places)
    assert told.error == (
        "No space left on device: its checkpoint (file:///full) has 3 KiB left. "
        "Once there is room the job goes on from its last batch."
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
    """No place is full; there was another error; a user's own function wrote somewhere."""
    assert failures.with_full_disks(failure, places) == failure


def test_a_quota_is_a_full_disk_too() -> None:
    """Also where only the traceback tells."""
    said = evolve(FULL, error="FSError", traceback="Caused by: java.io.IOException: Disk quota exceeded")
    assert failures.with_full_disks(said, {"output a": "/full"}).error.startswith(
        "Disk quota exceeded: output a (/full) has 3 KiB"
    )
