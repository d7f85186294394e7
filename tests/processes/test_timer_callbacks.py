"""Callbacks of timers from real peers: a node is killed and another one added meanwhile.

Each timer is delivered, and none is early. Each repeat has the same key and its reason, and is
explained: the earlier attempt was interrupted, or was answered a moment before the kill, so that a
majority may not have stored the completion. All clocks are that of this machine.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import httpx
import pytest
import trio
from attrs import define, field

from onyxq.core.limits import TIMERS_QUEUE as QUEUE
from tests.processes.cluster import Cluster, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

TIMERS = int(os.environ.get("ONYXQ_TEST_TIMERS", "300"))
"""Number of timers; before a release it is 10,000."""
SECONDS = int(os.environ.get("ONYXQ_TEST_SECONDS", str(max(4, TIMERS // 400))))
"""Time in which they are due, in seconds."""
SET_PER_S = 40
"""Timers that can be set in a second even on a busy machine."""
FIRST = max(48, TIMERS // 20)
"""First timers, from which the speed of setting is computed."""
LATEST_MS = 1_000 * (5 + SECONDS)
SETTERS = 16
ANSWER_S = 0.05
"""Time of the receiver for an answer, so that some attempts are always running."""
TIMEOUT_MS = 5_000
STORED_MS = 1_000
"""Time after which a majority has stored a completion, also on a busy machine."""
NAMES = ("a", "b", "c")


@define
class Attempt:
    """One received callback."""

    timer: str
    key: str
    number: int
    at_ms: int
    repeats: str = ""
    """The reason that it gives for a repeat."""
    cut_off: bool = False
    """Whether its sender closed the connection before the answer."""
    answered_ms: int = 0


@define
class Receiver:
    """A small HTTP server that accepts everything after a moment."""

    attempts: list[Attempt] = field(factory=list)
    timers: set[str] = field(factory=set)
    _changed: trio.Event = field(factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection, which has one request."""
        head, attempt = b"", None
        try:
            while b"\r\n\r\n" not in head:
                if not (some := await stream.receive_some()):
                    return
                head += some
            attempt = self._note(head)
            with trio.move_on_after(ANSWER_S):
                attempt.cut_off = not await stream.receive_some()  # at once if the sender is gone
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            attempt.answered_ms = wall_ms()
        except trio.BrokenResourceError:
            if attempt is not None:
                attempt.cut_off = True
        finally:
            await trio.aclose_forcefully(stream)

    def _note(self, head: bytes) -> Attempt:
        lines = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        said = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        key, number, repeats = said["idempotency-key"], int(said["x-timer-attempt"]), said.get("x-timer-repeats", "")
        attempt = Attempt(said["x-timer-id"], key, number, wall_ms(), repeats)
        self.attempts.append(attempt)
        self.timers.add(attempt.timer)
        self._changed.set()
        self._changed = trio.Event()
        return attempt

    async def until(self, timers: int) -> None:
        """Wait until that many different timers have come."""
        while len(self.timers) < timers:
            await self._changed.wait()


def wall_ms() -> int:
    """Return the time of this machine's clock."""
    return time.time_ns() // 1_000_000


async def set_all(addresses: Sequence[str], uri: str) -> dict[str, int]:
    """Set timers through all peers; return the time before which each must not come.

    The first ones show how fast timers can be set, which decides when the first one is due.
    """
    begun_s, begin_ms = trio.current_time(), 0
    not_before: dict[str, int] = {}

    async def work(numbers: range, place: int) -> None:
        base = f"http://{addresses[place % len(addresses)]}"
        async with httpx.AsyncClient(base_url=base, timeout=60, trust_env=False) as http:
            for number in numbers:
                now_ms = wall_ms()
                timeout = begin_ms + 1_000 * SECONDS * number // TIMERS - now_ms if begin_ms else LATEST_MS
                callback = {"transport": "http", "method": "post", "uri": uri}
                body = {"timeout": max(1, timeout), "data": {"number": number}, "callback": callback}
                answer = await http.post("/timer", json=body, headers={"x-timer-id": f"t{number}"})
                assert answer.status_code == 201, answer.text
                not_before[f"t{number}"] = now_ms + max(1, timeout)

    for first, last in ((0, FIRST), (FIRST, TIMERS)):
        async with trio.open_nursery() as nursery:
            for place in range(SETTERS):
                nursery.start_soon(work, range(first + place, last, SETTERS), place)
        each_ms = 1_000 * (trio.current_time() - begun_s) / FIRST
        begin_ms = wall_ms() + 1_000 + int(1.5 * each_ms * (TIMERS - FIRST))
    return not_before


@bounded(150 + TIMERS / SET_PER_S + 4 * SECONDS)
async def test_every_timer_is_delivered_though_nodes_come_and_go(cluster: Cluster) -> None:
    """Each comes once, except those that the killed node had started, which come again under the same key."""
    cluster.more_options("--timer-timeout-ms", str(TIMEOUT_MS))
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    receiver = Receiver()
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, receiver.serve, 0, host="127.0.0.1", backlog=1_024)
        (listener,) = await nursery.start(serve)
        uri = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        not_before = await set_all([peer.http for peer in cluster.serving], uri)
        await receiver.until(TIMERS // 2)
        victim = cluster["a"]
        victim.kill()
        killed_ms = wall_ms()
        await cluster.start("d")
        await receiver.until(TIMERS)
        await all_fired(cluster)
        nursery.cancel_scope.cancel()
    early = [one for one in receiver.attempts if one.at_ms < not_before[one.timer]]
    late_ms = sorted({one.timer: one.at_ms - not_before[one.timer] for one in reversed(receiver.attempts)}.values())
    again = {timer for timer, count in Counter(one.timer for one in receiver.attempts).items() if count > 1}
    why = Counter(reason(before, killed_ms) for before, _ in repeated(receiver.attempts))
    answered_ms = [before.answered_ms for before, _ in repeated(receiver.attempts) if before.answered_ms]
    window_ms = max((killed_ms - at_ms for at_ms in answered_ms), default=0)
    print(
        f"\n{TIMERS} timers over {SECONDS} s: {len(receiver.timers)} came, {len(early)} early, "
        f"{len(again)} again: {dict(why)}, answered at most {window_ms} ms before the kill; "
        f"late ms: p50 {late_ms[TIMERS // 2]}, p99 {late_ms[TIMERS * 99 // 100]}, max {late_ms[-1]}"
    )
    assert receiver.timers == not_before.keys()
    assert not early
    assert UNEXPLAINED not in why
    for before, after in repeated(receiver.attempts):
        assert after.key == before.key and after.number > before.number
        assert after.repeats == f"attempt {after.number - 1}: the lease of timers/{victim.node} expired"
        claims = (await cluster.see(cluster["b"], f"/v1/tasks/{after.key}"))["claims"]
        assert (f"timers/{victim.node}", "expired") in [(claim["worker"], claim["outcome"]) for claim in claims]


CUT_OFF, NOT_STORED, UNEXPLAINED = "cut off", "answered, not stored before the kill", "unexplained"


def repeated(attempts: Sequence[Attempt]) -> list[tuple[Attempt, Attempt]]:
    """Return each attempt that was followed by another one of the same timer, and that one."""
    last: dict[str, Attempt] = {}
    found = []
    for one in attempts:
        if one.timer in last:
            found.append((last[one.timer], one))
        last[one.timer] = one
    return found


def reason(attempt: Attempt, killed_ms: int) -> str:
    """Return why an attempt was followed by another one."""
    if attempt.cut_off or not attempt.answered_ms:
        return CUT_OFF
    return NOT_STORED if killed_ms - STORED_MS <= attempt.answered_ms else UNEXPLAINED


async def all_fired(cluster: Cluster) -> None:
    """Wait until nothing is left to deliver, and nothing has failed."""

    async def look() -> bool:
        depth = (await cluster.see(cluster["b"], f"/v1/queues/{QUEUE}"))["depth"]
        assert depth["failed"] == 0
        return bool(depth["completed"] == TIMERS)

    await cluster.until("every timer has fired", look, seconds=90)
