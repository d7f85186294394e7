"""Shares of the places for callbacks, without a network."""

from __future__ import annotations

from itertools import count

from onyxq.interfaces.callbacks.lanes import (
    AHEAD_MAX,
    LANES_MAX,
    PATIENCE_S,
    PLACES,
    QUICK,
    RUNS_MAX,
    SLOW,
    SLOW_AHEAD_MAX,
    SLOW_S,
    Admission,
    Lanes,
)

TIMEOUT_S = 10.0


class Node:
    """The callbacks of one node."""

    def __init__(self) -> None:
        self.lanes: Lanes[int] = Lanes()
        self.now_s = 0.0
        self.running: dict[int, str] = {}
        self._numbers = count()

    def admit(self, lane: str) -> Admission:
        """Claim a callback."""
        number = next(self._numbers)
        said = self.lanes.admit(lane, number, self.now_s)
        if said == "runs":
            self.running[number] = lane
        return said

    def claim(self, lane: str, number: int) -> list[Admission]:
        """Claim callbacks, as many as the node may have."""
        return [self.admit(lane) for _ in range(number) if self.lanes.waiting < AHEAD_MAX and self.held < PLACES]

    @property
    def held(self) -> int:
        """Number of callbacks that run or wait."""
        return len(self.running) + self.lanes.waiting

    def end(self, lane: str) -> None:
        """End all running callbacks of a lane."""
        for number in [one for one, of in self.running.items() if of == lane]:
            del self.running[number]
            self.running |= dict.fromkeys(self.lanes.end(lane, number, self.now_s, made=True), lane)

    def wait(self, seconds: float) -> int:
        """Let time pass; return the number of callbacks that then come later."""
        self.now_s += seconds
        return len(self.lanes.late(self.now_s))


def known_as_quick(node: Node, lane: str) -> None:
    """Make a quick callback."""
    assert node.admit(lane) == "runs"
    node.end(lane)


def test_a_lane_runs_some_and_lets_others_wait() -> None:
    """A node with callbacks to one receiver only has all its waiting ones there."""
    node = Node()
    said = node.claim("a.example:80", PLACES)
    assert said == ["runs"] * QUICK.lane + ["waits"] * AHEAD_MAX
    node.end("a.example:80")
    assert (len(node.running), node.lanes.waiting) == (QUICK.lane, AHEAD_MAX - QUICK.lane)


def test_callbacks_to_a_lane_that_became_slow_come_later() -> None:
    """Those that would wait for too long."""
    node = Node()
    node.claim("a.example:80", QUICK.lane + 20)
    assert node.wait(PATIENCE_S * SLOW.lane) == 20 - 1
    assert node.admit("a.example:80") == "late"
    assert node.lanes.drained() and node.lanes.waiting == 0


def test_slow_receivers_leave_places_for_a_quick_one() -> None:
    """However many hosts they are, and even if they all begin at once."""
    for hosts in (1, 10, 100, 1_000):
        node = Node()
        known_as_quick(node, "quick.example:80")
        for _ in range(3):
            for host in range(hosts):
                node.claim(f"slow-{host}.example:80", QUICK.lane + 4)
            node.wait(0.5)
        assert node.held < PLACES and node.lanes.waiting < AHEAD_MAX
        assert [node.admit("quick.example:80") for _ in range(QUICK.lane)] == ["runs"] * QUICK.lane


def test_ports_of_one_host_share_its_places() -> None:
    """A caller that has a host with many ports does not have many shares."""
    node = Node()
    for port in range(1, 1_000):
        node.claim(f"slow.example:{port}", 1)
    assert len(node.running) < RUNS_MAX / 4
    assert node.claim("other.example:80", QUICK.lane) == ["runs"] * QUICK.lane


def test_receivers_that_were_slow_leave_places_for_new_ones() -> None:
    """However many hosts they are: what is known of a receiver stays known without callbacks."""
    node = Node()
    hosts = [f"slow-{number}.example:80" for number in range(100)]
    for _ in range(20):
        for host in hosts:
            node.claim(host, QUICK.lane)
        node.wait(TIMEOUT_S)
        for host in hosts:
            node.end(host)
    for host in hosts:
        node.claim(host, QUICK.lane)
    node.wait(2 * SLOW_S)
    assert node.lanes.waiting <= SLOW_AHEAD_MAX
    assert node.claim("new.example:80", 10) == ["runs"] * 10


def test_a_quick_receiver_stays_known_beside_very_many_slow_ones() -> None:
    """More than the node remembers: otherwise its callbacks would wait like those of a new one."""
    node = Node()
    known_as_quick(node, "quick.example:80")
    for number in range(LANES_MAX + 10):
        node.claim(f"slow-{number}.example:80", 1)
        node.now_s += TIMEOUT_S
        node.end(f"slow-{number}.example:80")
    for number in range(PLACES):
        node.claim(f"new-{number}.example:80", 1)
    assert node.admit("another.example:80") == "late"
    assert node.admit("quick.example:80") == "runs"


def test_a_receiver_that_becomes_quick_has_all_its_places_again() -> None:
    """After some callbacks that were quick."""
    node = Node()
    node.claim("a.example:80", QUICK.lane)
    node.wait(TIMEOUT_S)
    node.end("a.example:80")
    assert node.claim("a.example:80", QUICK.lane).count("runs") == SLOW.lane
    for _ in range(10):
        node.end("a.example:80")
        node.claim("a.example:80", QUICK.lane)
    assert len(node.running) == QUICK.lane
