"""Reports of ended claims of timers, which are repeated after a failure."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio
import trio.testing

from onyxq.errors import Unavailable
from onyxq.interfaces.callbacks.reports import Reporting


def test_what_comes_while_an_earlier_report_waits_for_its_next_try_is_told_too() -> None:
    """It is reported too: otherwise its callback would be made again after the lease, and its place stay occupied."""
    told, over = list[bytes](), list[str]()

    async def main() -> None:
        up, done = trio.Event(), trio.Event()

        def taken(name: str) -> None:
            over.append(name)
            if len(over) == 6:
                done.set()

        async def ask(method: str, args: dict[str, Any]) -> dict[str, Any]:
            if not up.is_set():
                raise Unavailable("the partition has no leader now")
            told.extend(item[0] for item in args["items"])
            return {"results": [[] for _ in args["items"]]}

        reporting = Reporting(ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reporting.run)
            for name in ("a", "b", "c", "d", "e", "f"):
                reporting.add("complete", [name.encode(), 1, 7], partial(taken, name))
                await trio.testing.wait_all_tasks_blocked()
            up.set()
            with trio.move_on_after(10):
                await done.wait()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(told) == [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert sorted(over) == ["a", "b", "c", "d", "e", "f"]
