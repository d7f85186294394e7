"""A collector that dies between any two of its writes leaves a readable log, which the next one can collect."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from onyxq.core.log.interface import LogSession, Record, Trimmed
from onyxq.log import zookeeper_origin
from onyxq.log.embedded import EmbeddedBackend
from onyxq.log.zookeeper import ZookeeperBackend, ZookeeperSession
from onyxq.log.zookeeper_server import ZookeeperServer
from tests.conformance.log_world import TEST_TIMEOUT_S, bounded, intruder, session_with

pytestmark = pytest.mark.anyio

RECORDS = 30
FIRST, SECOND, THIRD = 11, 23, 27
"""Positions of three consecutive origins; the collector of the second one dies."""


class Died(BaseException):
    """The collector's process has died."""


def origin_at(position: int) -> bytes:
    """Return the content of an origin: three chunks, if chunks are small."""
    return b"%05d" % position * 50


async def collect(session: LogSession, position: int) -> None:
    """Collect the log as a collector does."""
    old = await session.origin()
    version = old.version if old is not None else -1
    assert await session.store_origin(position, origin_at(position), expected_version=version)
    await session.trim(position)
    await session.rotate()


async def check(session: LogSession, positions: set[int]) -> int:
    """Check that the origin is complete and one of these, and that every later record can be read."""
    origin = await session.origin()
    assert origin is not None and origin.position in positions
    assert origin.data == origin_at(origin.position)
    assert origin.trimmed <= origin.position
    for position in range(RECORDS):
        found = await session.read(position)
        if isinstance(found, Trimmed):
            assert position <= origin.trimmed and found.origin == origin.position
        else:
            assert isinstance(found, Record) and found.data == b"%d" % position
            assert position > origin.trimmed
    return origin.position


async def finish(session: LogSession) -> None:
    """Let the next collector finish the work of the dead one, and another one follow."""
    origin = await session.origin()
    assert origin is not None
    if origin.position < SECOND:
        await collect(session, SECOND)
    await session.trim(SECOND)
    await collect(session, THIRD)
    assert await check(session, {THIRD}) == THIRD
    found = await session.origin()
    assert found is not None and found.trimmed == THIRD


class _Dying:
    """Lets a number of calls to ZooKeeper through except one, and then ends the process with `Died`."""

    def __init__(self, session: ZookeeperSession, calls: int) -> None:
        self._left = calls
        link: Any = session._link
        link.insist = self._wrap(link.insist)
        link.call = self._wrap(link.call)

    def _wrap(self, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        async def counted(make: Any) -> Any:
            self._left -= 1
            if self._left <= 0:
                raise Died
            return await call(make)

        return counted


async def prepare(session: LogSession) -> None:
    """Collect the log once."""
    for number in range(RECORDS):
        await session.append(b"%d" % number)
    await collect(session, FIRST)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use origins of several chunks and trims of several batches."""
    monkeypatch.setattr(zookeeper_origin, "CHUNK_BYTES", 100)
    monkeypatch.setattr(zookeeper_origin, "TRIM_BATCH_RECORDS", 5)


@pytest.mark.long
async def test_a_zookeeper_collector_may_die_at_any_of_its_calls(zookeeper: ZookeeperServer, cluster: str) -> None:
    """Each call in turn is the first that fails; at the end only the last origin remains."""
    calls = 1
    while not await ended(zookeeper, f"{cluster}-{calls}", calls=calls):
        calls += 1
    assert calls > 15, "a collection has more calls"


async def ended(zookeeper: ZookeeperServer, cluster: str, *, calls: int) -> bool:
    """Let a collector die at a call and check the log; return True if it ended before that call."""
    with trio.fail_after(TEST_TIMEOUT_S):
        backend = ZookeeperBackend(zookeeper.hosts, cluster)
        async with session_with(backend) as session, session_with(backend) as dying:
            await prepare(session)
            came_to_the_end = await _dies(dying, calls)
            await check(session, {FIRST, SECOND})
            await finish(session)
        assert await _names(zookeeper, backend.cluster) == [f"{THIRD}"] * 3 + ["pointer"]
        return came_to_the_end


async def _dies(session: ZookeeperSession, calls: int) -> bool:
    """Collect until the process dies at a call; return True if it ended before that call."""
    _Dying(session, calls)
    try:
        await collect(session, SECOND)
    except Died:
        return False
    return True


async def _names(zookeeper: ZookeeperServer, cluster: str) -> list[str]:
    """Return the positions of the existing chunks, and the pointer."""
    with intruder(zookeeper.hosts) as client:
        names = client.get_children(f"/onyxq/{cluster}/origin")
    return sorted(name.split("-")[0] for name in names)


@bounded
async def test_an_embedded_log_may_end_before_and_after_any_of_its_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files at each moment are a valid log."""
    backend = EmbeddedBackend.open(tmp_path / "log")
    session = await backend.session()
    await prepare(session)
    copies: list[Path] = []

    def keep() -> None:
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(tmp_path / "log", copies[-1])

    def copying(flush: Callable[[int], None], handle: int) -> None:
        keep()
        flush(handle)
        keep()

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, partial(copying, getattr(os, name)))
        await collect(session, SECOND)
    await backend.aclose()
    assert len(copies) >= 8
    seen = set()
    for copy in copies:
        again = EmbeddedBackend.open(copy)
        session = await again.session()
        seen.add(await check(session, {FIRST, SECOND}))
        await finish(session)
        await again.aclose()
    assert seen == {FIRST, SECOND}
