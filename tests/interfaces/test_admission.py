"""The bounded queue of writes: which it admits, which it refuses, and how long clients must wait."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import pytest

from onyxq.errors import Overloaded, from_map
from onyxq.operations.admission import (
    QUEUE_BYTES_MIN,
    RATE_FIRST,
    REQUEST_BYTES,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    SMALL_BYTES,
    WAIT_S,
    Admission,
)

LARGE = 256 * 1024 - REQUEST_BYTES


class Queue:
    """Writes of clients that stay in progress until they are ended."""

    def __init__(self) -> None:
        self.now = 100.0
        self.admission = Admission(lambda: self.now)
        self.open: list[AbstractContextManager[None]] = []

    def begin(self, caller: str, size: int = LARGE, *, urgent: bool = False) -> Overloaded | None:
        """Begin a write; return its refusal if it is not admitted."""
        write = self.admission.admitted(caller, size, urgent=urgent)
        try:
            write.__enter__()
        except Overloaded as error:
            return error
        self.open.append(write)
        return None

    def fill(self, *callers: str) -> int:
        """Begin large writes in turns until every client was refused; return how many were admitted."""
        before = len(self.open)
        left = list(callers)
        while left:
            left = [caller for caller in left if self.begin(caller) is None]
        return len(self.open) - before

    def end(self, count: int) -> None:
        """End the oldest writes."""
        for write in self.open[:count]:
            write.__exit__(None, None, None)
        del self.open[:count]


def test_no_more_is_admitted_than_is_served_in_time() -> None:
    """The measured rate decides; all other writes are refused, and do not count."""
    queue = Queue()
    queue.fill("a", "b", "c", "d")
    bytes_max = RATE_FIRST * WAIT_S
    assert bytes_max * 0.9 < queue.admission.bytes <= bytes_max
    assert queue.admission.refused == 4
    queue.end(len(queue.open))
    assert queue.admission.bytes == 0 and queue.begin("a") is None


def test_a_write_that_waits_for_nothing_is_admitted_however_large() -> None:
    """An idle node accepts the largest possible task."""
    queue = Queue()
    assert queue.begin("a", 1 << 30) is None
    assert queue.begin("b") is not None


def test_one_caller_does_not_shut_others_out() -> None:
    """Alone it may use everything; with others each has a share, and there is room for later ones."""
    queue = Queue()
    alone = queue.fill("greedy")
    assert alone * (LARGE + REQUEST_BYTES) > RATE_FIRST * WAIT_S * 0.9
    queue.end(alone // 4)
    assert queue.begin("late") is None
    assert queue.begin("greedy") is not None
    assert queue.fill("late", "greedy") > 2


def test_small_writes_and_ends_of_claims_have_a_reserve() -> None:
    """The reserve is for clients with little in progress, and for others if they free something."""
    queue = Queue()
    queue.fill("greedy", "other")
    with pytest.raises(Overloaded):
        queue.admission.check(LARGE)
    queue.admission.check(100)
    assert queue.begin("bystander", 100) is None
    assert queue.begin("greedy", 100) is not None
    assert queue.begin("greedy", 100, urgent=True) is None
    assert queue.begin("greedy", LARGE, urgent=True) is not None
    while queue.begin(f"small {len(queue.open)}", SMALL_BYTES - REQUEST_BYTES) is None:
        pass
    assert queue.admission.bytes <= 2 * queue.admission.bytes_max


def test_the_bound_follows_what_is_finished() -> None:
    """A slow node accepts less; a node that becomes faster accepts more again."""
    queue = Queue()
    queue.fill("a", "b")
    for _ in range(40):  # 1 MiB/s
        queue.now += 0.25
        queue.end(1)
        queue.fill("a", "b")
    assert queue.admission.bytes_max < 2 * QUEUE_BYTES_MIN
    assert 0.9 * (1 << 20) < queue.admission.rate < 1.2 * (1 << 20)
    for _ in range(200):  # 8 MiB/s
        queue.now += 1 / 32
        queue.end(1)
        queue.fill("a", "b")
    assert 7 << 20 < queue.admission.rate < 9 << 20 and queue.admission.bytes_max > 3 * QUEUE_BYTES_MIN


def test_a_node_that_was_slow_is_tried_again() -> None:
    """This holds although only one large write fits in its queue, which does not show its rate."""
    queue = Queue()
    queue.fill("a", "b")
    for _ in range(40):
        queue.now += 1
        queue.end(1)
        queue.fill("a")
    queue.end(len(queue.open))
    assert queue.admission.rate < 1 << 19
    for _ in range(40):
        assert queue.begin("a", 900_000) is None
        queue.now += 0.01
        queue.end(1)
    assert queue.admission.rate >= RATE_FIRST


def test_a_disk_that_takes_long_for_every_write_is_kept_busy() -> None:
    """Other writes do not wait for the time of a single write, so the bound does not shrink to a few writes."""
    queue = Queue()
    for _ in range(100):  # each takes 0.6 s, for any number of them
        queue.fill("a", "b", "c")
        queue.now += 0.6
        queue.end(len(queue.open))
    assert queue.admission.bytes_max > RATE_FIRST * WAIT_S


def test_an_idle_node_is_not_slow() -> None:
    """One write at a time does not show how many could be served."""
    queue = Queue()
    for _ in range(100):
        assert queue.begin("a", 1_000) is None
        queue.now += 0.1
        queue.end(1)
    assert queue.admission.rate >= RATE_FIRST


def test_the_more_are_refused_the_longer_they_are_to_wait() -> None:
    """The wait has bounds, and becomes shorter once no client was refused for a while."""
    queue = Queue()
    queue.fill("a", "b")
    pauses = [refusal.retry_after_ms for _ in range(500) if (refusal := queue.begin("a")) is not None]
    assert len(pauses) == 500 and pauses == sorted(pauses)
    assert RETRY_MS_MIN <= pauses[0] < 1_000 and pauses[-1] == RETRY_MS_MAX
    queue.now += 30
    later = queue.begin("a")
    assert later is not None and later.retry_after_ms < 1_000


def test_a_failed_write_is_no_longer_in_progress() -> None:
    """This holds for any error."""
    queue = Queue()
    with pytest.raises(RuntimeError), ExitStack() as stack:
        stack.enter_context(queue.admission.admitted("a", LARGE))
        raise RuntimeError
    assert queue.admission.bytes == 0


def test_the_pause_travels_with_the_error() -> None:
    """It is sent over the wire and is in the exception."""
    error = from_map(Overloaded("busy", retry_after_ms=2_500).to_map())
    assert isinstance(error, Overloaded) and error.retry_after_ms == 2_500
