"""Replay of a log that was dumped from a real cluster, with the checkers that need only the log.

``python -m simulation.replay FILE [--until N]`` steps every record of a dump and judges each step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from onyxq.core import snapshot
from onyxq.core.ids import Run, id_at, ids_of
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from onyxq.history.dump import Dump, read
from onyxq.history.replay import replay as replay_steps
from simulation.checkers import Broken, Course, LogChecker
from simulation.checkers.attempts_counted import AttemptsCounted
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.invariants_hold import InvariantsHold, SnapshotsEqual
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.log_time import LogTime
from simulation.checkers.one_claim import OneClaim
from simulation.checkers.ring_watched import RingWatched
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.world.history import History


def checkers_from(start: Replica) -> tuple[LogChecker, ...]:
    """Return checkers of the records after a replica, which holds what they need of the records before."""
    claims = OneClaim(History())
    tokens = TokensIncrease()
    for stretches in start.claims.values():
        for stretch, pieces in stretches.items():
            for offset, count, token, _, deadline_ms in pieces:
                for task_id in ids_of(*Run(id_at(stretch, offset), count)):
                    claims.holders[task_id] = tokens.last[task_id] = token
                    claims.deadlines[task_id] = deadline_ms
    checkers: tuple[LogChecker, ...] = (
        CountedOnce(dict(start.outbox)),
        InvariantsHold(),
        SnapshotsEqual(),
        RingWatched(),
        LeadersOnly(),
        LogTime(grown=start.grown_records),
        claims,
        tokens,
    )
    # Only the stores hold how often tasks were tried before an origin.
    return (*checkers, AttemptsCounted(claims.history, claims)) if start.cluster is None else checkers


def replay(dump: Dump, until: int | None = None) -> Iterator[Step]:
    """Yield the steps of a dump, each judged; raises `Broken`, `Corrupt`, `OlderThanCluster`."""
    course = Course(replica=dump.start, checkers=checkers_from(dump.start))
    for step in replay_steps(dump, until):
        course.judge(step)
        yield step


def main(arguments: Sequence[str] | None = None) -> int:
    """See ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m simulation.replay", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--until", type=int, metavar="N", help="the last position (default: all)")
    asked = parser.parse_args(arguments)
    dump = read(asked.file)
    replica, records = dump.start, 0
    try:
        for step in replay(dump, asked.until):
            replica, records = step.replica, records + 1
    except Broken as broken:
        print(f"broken: {broken}")
        return 1
    print(f"{records} records, position {replica.position}, digest {snapshot.digest(replica)}: nothing is broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
