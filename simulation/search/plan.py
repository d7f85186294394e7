"""Plans of the search: a cluster, and how likely each kind of move is."""

from __future__ import annotations

from random import Random

from attrs import frozen

from simulation.search.cluster import Options

LEASES_MS = (20, 60, 200, 200, 1_500, 6_000)
"""Leases that are granted: most are near their end soon."""

QUEUES = ("mail", "bulk")
NAMES = tuple(f"t{number}" for number in range(40))
"""Of transactions: few enough that they come again."""

ODDS = {
    # reading, deciding, writing
    "turn": 50,
    "read": 25,
    "react": 20,
    "send": 15,
    "land": 25,
    "beat": 3,
    "doubt": 5,
    "land-twice": 3,
    "skip": 5,
    "lose": 6,
    "late": 6,
    "garbage": 1,
    "alone": 2,
    "sleep": 1,
    "wake": 1,
    # leaders
    "lead": 14,
    "give-up": 1,
    "claims": 160,
    "transact": 12,
    "settle-part": 10,
    "limit": 2,
    "periodic": 4,
    "force": 0.5,
    "purge": 1,
    # who comes and goes
    "start": 8,
    "crash": 1.5,
    "expire": 1.2,
    "kill": 1,
    "kill-all": 0.1,
    "leave": 0.7,
    "evict": 0.3,
    "abort": 0.7,
    "slots": 0.5,
    "drain": 0.4,
    # programs and extensions
    "install": 2,
    "tally": 14,
    "raise": 0.4,
    # garbage
    "gc": 2,
    "race": 0.5,
    "look": 4,
    "store": 4,
    "trim": 6,
    "finish": 4,
    # time
    "wait": 20,
    "idle": 1,
    "log-clock": 1,
    "clock": 0.6,
    "segment": 0.3,
}
"""How often each kind of move is made, before a seed bends it."""


@frozen
class Plan:
    """What a seed draws before its first move."""

    options: Options
    nodes: tuple[str, ...]
    odds: dict[str, float]
    programs: tuple[int, ...]
    """What each node runs at first."""


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed; some runs lack some kinds of moves altogether."""
    draw = Random(f"plan {seed}")
    nodes = draw.choice((1, 2, 3, 3, 4, 5, 5, 7))
    options = Options(
        partitions=draw.choice((1, 2, 3)),
        replicas=draw.choice((1, 2, 3, 3)),
        absent_after_ms=draw.choice((500, 3_000, 60_000)),
        zones=draw.choice((1, 1, 3)),
        gc_records=draw.choice((30, 200, 20_000)),
    )
    bend = (0.0, 0.3, 1.0, 1.0, 1.0, 3.0)
    kept = ("turn", "start", "wait", "land", "lead")
    odds = {move: odd * (1.0 if move in kept else draw.choice(bend)) for move, odd in ODDS.items()}
    if draw.random() < 0.5:
        odds["clock"] = 0.0
    usual = draw.randrange(3)
    programs = tuple(draw.choice((usual, usual, usual, usual, 1, 2)) for _ in range(nodes))
    return Plan(options, tuple("abcdefg"[:nodes]), odds, programs)
