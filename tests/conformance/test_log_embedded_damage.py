"""Files of the embedded log in any wrong state: the records of before, or a refusal, never others."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.log.interface import Record
from onyxq.errors import LogDamaged
from onyxq.log import embedded_file
from onyxq.log.embedded_file import LogFile
from onyxq.log.embedded_groups import SECTOR_BYTES

SMALL = 16 * SECTOR_BYTES
"""Size of the files here, so that there are several."""
CHANGES = 10
"""Changes of one byte that are tried on each log."""

CONTENT = st.one_of(st.binary(max_size=40), st.integers(0, 1_500).map(bytes))
"""Bytes of a record; zeros, too, which an unwritten sector consists of."""
GROUP = st.lists(CONTENT, min_size=1, max_size=3)
GROUPS = st.lists(GROUP, min_size=1, max_size=12)


@pytest.fixture(autouse=True, scope="module")
def small_files() -> Iterator[None]:
    """Let files be small, and the disk fast; what a crash leaves is made by the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded_file, "FILE_BYTES", SMALL)
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _: None)
        yield


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    """Open a log and close it at the end."""
    log = LogFile(path)
    try:
        yield log
    finally:
        log.close()


def read(log: LogFile) -> list[Record]:
    """Return all records that are not trimmed."""
    position, found = log.state.trimmed + 1, list[Record]()
    while position < log.next:
        found += log.fetch(position, log.next)
        position = found[-1].position + 1
    return found


@contextmanager
def written(groups: Sequence[Sequence[bytes]], trimmed: int) -> Iterator[tuple[Path, list[Record]]]:
    """Write groups of records, and trim that many of them; return the directory and the other records."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        with opened(path) as log:
            records = [record for group in groups for record in log.append(group, 7)]
            trimmed = min(trimmed, len(records))
            if trimmed:
                assert log.put_origin(trimmed - 1, b"origin", -1)
                assert log.trim(trimmed - 1) == trimmed
            assert read(log) == records[trimmed:]
        yield path, records[trimmed:]


def check(path: Path, allowed: Sequence[list[Record]]) -> None:
    """Check that the log is refused by name, or has one of these contents and takes more."""
    try:
        with opened(path) as log:
            found = read(log)
            assert found in allowed
            found += log.append([b"more"], 8)
    except LogDamaged as error:
        assert str(path) in error.message
        return
    with opened(path) as log:
        assert read(log) == found


@pytest.mark.long
@given(GROUPS, st.integers(0, 10), st.integers(0, 1 << 32))
def test_a_changed_byte_anywhere_is_refused_or_changes_nothing(
    groups: list[list[bytes]], trimmed: int, seed: int
) -> None:
    """No record is lost, however near the end the byte is."""
    chance = random.Random(seed)
    with written(groups, trimmed) as (path, records):
        kept = {file: file.read_bytes() for file in path.iterdir()}
        files = sorted(path.glob("*.records"))
        for _ in range(CHANGES):
            for file in path.iterdir():
                file.unlink()
            for file, data in kept.items():
                file.write_bytes(data)
            file = chance.choice(files)
            image = bytearray(kept[file])
            said = [at for at, byte in enumerate(image) if byte] if chance.random() < 0.8 else range(len(image))
            image[chance.choice(said)] ^= chance.randrange(1, 256)
            file.write_bytes(image)
            check(path, [records])


@given(GROUPS, st.integers(0, 10), st.data())
def test_a_file_that_was_cut_off_is_refused(groups: list[list[bytes]], trimmed: int, data: st.DataObject) -> None:
    """A file is never shorter than it was made, so the cut shows."""
    with written(groups, trimmed) as (path, _):
        file = data.draw(st.sampled_from(sorted(path.glob("*.records"))))
        image = file.read_bytes()
        file.write_bytes(image[: data.draw(st.integers(0, len(image) - 1))])
        with pytest.raises(LogDamaged, match=f"{file.name} has"):
            LogFile(path)


@given(GROUPS, GROUP | st.none(), GROUP, st.data())
def test_a_crash_before_the_flush_loses_at_most_the_last_group(
    groups: list[list[bytes]], failed: list[bytes] | None, last: list[bytes], data: st.DataObject
) -> None:
    """Any of its sectors may be on the disk, and before them those of a write that failed."""
    with written(groups, 0) as (path, records), pytest.MonkeyPatch.context() as patch, opened(path) as log:
        flushed: list[dict[Path, bytes]] = []

        def flush(_: int) -> None:
            flushed.append({file: file.read_bytes() for file in path.glob("*.records")})

        def fail(_: int) -> None:
            raise OSError

        if failed:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(OSError):
                log.append(failed, 9)
        patch.setattr(os, "fdatasync", flush)
        flush(0)
        whole = records + log.append(last, 9)
        for file, old in flushed[-2].items():
            image = bytearray(file.read_bytes())
            for at in range(0, len(image), SECTOR_BYTES):
                if old[at : at + SECTOR_BYTES] != image[at : at + SECTOR_BYTES] and data.draw(st.booleans()):
                    image[at : at + SECTOR_BYTES] = old[at : at + SECTOR_BYTES]
            file.write_bytes(image)
        with opened(path) as again:
            assert read(again) in (records, whole)
        check(path, [records, whole])


@given(GROUPS, st.data())
def test_a_zeroed_sector_loses_at_most_the_last_group(groups: list[list[bytes]], data: st.DataObject) -> None:
    """The last one may look like a torn write; an earlier one never does."""
    with written(groups, 0) as (path, records):
        file = data.draw(st.sampled_from(sorted(path.glob("*.records"))))
        image = bytearray(file.read_bytes())
        at = SECTOR_BYTES * data.draw(st.integers(0, len(image) // SECTOR_BYTES - 1))
        image[at : at + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        file.write_bytes(image)
        check(path, [records, records[: len(records) - len(groups[-1])]])
