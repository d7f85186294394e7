"""What a load says of its tasks beyond payloads: keys, dependencies, deadlines, queues with rules (design: simulation).

`RulesMix` gives the shares; `draw` makes one enqueue of them.  The queues stand beside the
plain one and are set up before anything is enqueued: in one a dead letter stops its ordering
key, one has limits, one is filled by a periodic task.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from attrs import frozen

from onyxq.core.ids import TaskId

STOPS, LIMITED, TICKS = "stops", "limited", "ticks"
TICK_S = 20
CONCURRENCY = 3
RATES = (1, 4, 0)
"""Tasks a second; 0: no limit."""
FATES = ("fail", "fail", "cancel", "run")


@frozen
class RulesMix:
    """Shares of the enqueues; what is left is plain."""

    ordered: float = 0.18
    unique: float = 0.12
    depends: float = 0.16
    expires: float = 0.08
    stops: float = 0.1
    limited: float = 0.1
    keys: int = 3
    """Of each kind."""
    dying: float = 0.15
    """How often a task is given no retry at all."""
    fail_stops: float = 0.3
    """How often a task of `STOPS` fails."""
    transact: float = 0.06
    """How often a task is completed by a transaction, which enqueues another one."""
    operate_s: float = 10.0
    """Longest pause between two things that an operator does."""


class Drawn(NamedTuple):
    """One enqueue: its queue, how many tasks at most, and what is said of them."""

    queue: str
    most: int
    said: dict[str, Any]


def draw(mix: RulesMix, generator: random.Random, queue: str, *, now_ms: int, recent: Sequence[TaskId]) -> Drawn:
    """The next enqueue; ``recent``: tasks on which it may depend."""
    said: dict[str, Any] = {"retries": 0} if generator.random() < mix.dying else {}
    kinds = ("ordered", "unique", "depends", "expires", "stops", "limited")
    shares = [getattr(mix, kind) for kind in kinds]
    (kind,) = generator.choices((*kinds, "plain"), (*shares, max(0.0, 1 - sum(shares))))
    key = f"k{generator.randrange(mix.keys)}"
    # A key that is held until the purge is never free during the load: a finished task holds it too.
    number = now_ms // 20_000
    unique = {
        "unique_key": f"{key} {number}",
        "unique_until": ("purged", "finished", "started")[number % 3],
        "delay_ms": generator.choice((0, 2_000)),
    }
    chosen = sorted({generator.choice(recent) for _ in range(generator.randint(1, 3))}) if recent else []
    depends = {"depends": chosen, "on_dependency_failed": generator.choice(FATES)}
    drawn = {
        "ordered": Drawn(queue, 3, said | {"ordering_key": key, "delay_ms": generator.choice((0, 0, 1_500))}),
        "unique": Drawn(queue, 1, unique),
        "depends": Drawn(queue, 2, said | (depends if recent else {})),
        "expires": Drawn(queue, 4, said | {"expires_ms": now_ms + generator.choice((300, 1_500, 8_000))}),
        "stops": Drawn(STOPS, 3, {"ordering_key": key, "retries": generator.randint(0, 1)}),
        "limited": Drawn(LIMITED, 8, {}),
        "plain": Drawn(queue, 1 << 30, said),
    }
    return drawn[kind]
