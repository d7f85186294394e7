"""Planted bugs of expiry: leases that end late although nothing hinders their leader."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.leader.expiry import Expiry
from simulation.planted.planted import Planted
from simulation.planted.seams import returning

LOOK_EVERY_S = 1.0


def _once_a_second(original: Callable[[Expiry], float]) -> Callable[[Expiry], float]:
    def wait_s(expiry: Expiry) -> float:
        found = original(expiry)
        return LOOK_EVERY_S if found > 0 else found

    return wait_s


LEASE_BUGS: tuple[Planted, ...] = (
    Planted(
        "a leader looks for lapsed claims once a second",
        "onyxq.leader.expiry:Expiry._wait_s",
        _once_a_second,
        "a claimer that waits gets a lapsed task up to a second late",
        "idle_leases",
        quick=1,
    ),
    Planted(
        "a leader does not note the deadlines of new claims",
        "onyxq.leader.expiry:Expiry.note",
        returning(None),
        "no deadline wakes the leader, so its lapsed claims stay",
        "idle_leases",
    ),
)
"""The planted bugs of leases."""
