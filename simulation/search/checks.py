"""The checkers of the search."""

from __future__ import annotations

from collections.abc import Callable

from simulation.checkers import LogChecker
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.invariants_hold import InvariantsHold, SnapshotsEqual
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.log_time import LogTime
from simulation.checkers.ring_watched import RingWatched
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.log_probes import LogWatcher
from simulation.probes import Probes
from simulation.search.claims import ClaimsModel
from simulation.search.extension import TallyModel
from simulation.search.jobs_model import JobsModel

SAMPLED_EVERY = 16
"""Records between checks of the invariants while ring, peers, nodes, partitions and jobs stay the same."""


def checkers_of(probes: Probes, elapsed_ms: Callable[[], int]) -> tuple[LogChecker, ...]:
    """Return the checkers of a search; ``elapsed_ms`` gives the true time since the start of the log."""
    return (
        LogWatcher(probes),
        CountedOnce(),
        LeadersOnly(),
        LogTime(elapsed_ms),
        TokensIncrease(),
        ClaimsModel(probes),
        TallyModel(probes),
        JobsModel(probes),
        InvariantsHold(SAMPLED_EVERY),
        RingWatched(),
        SnapshotsEqual(),
    )
