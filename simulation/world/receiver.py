"""A receiver of timers' callbacks that records when each begins and ends (design: simulation).

Nodes call it through the transport ``simulated`` if `Options.callbacks` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from attrs import define, field

from onyxq.core.timer_model import Delivery

TRANSPORT = "simulated"
CALLBACK = {"transport": TRANSPORT, "uri": "receiver", "method": "post"}


@define(eq=False)
class Callback:
    """One callback as the receiver saw it; times in simulated seconds."""

    timer: str
    key: str
    """Id of the timer's task."""
    attempt: int
    data: Any
    began_s: float
    ended_s: float | None = None
    """When it was answered or cancelled; None while it runs."""


@define(eq=False)
class SimulatedReceiver:
    """Answers every callback after `takes_s`."""

    takes_s: Callable[[Delivery], float] = lambda delivery: 0.0
    callbacks: list[Callback] = field(factory=list)

    async def deliver(self, delivery: Delivery) -> int:
        """Answer one callback."""
        found = Callback(delivery.timer, delivery.key, delivery.attempt, delivery.data, trio.current_time())
        self.callbacks.append(found)
        try:
            await trio.sleep(self.takes_s(delivery))
        finally:
            found.ended_s = trio.current_time()
        return 200
