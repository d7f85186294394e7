"""Tests whose body runs in a simulated cluster."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from simulation.world.world import Options, World, simulate
from tests.own_arguments import AsyncTest, Decorator, own_arguments, seen_by_pytest
from tests.simulation.scheduled import Tasks


def simulated(*, seed: int | None = None, options: Options | None = None, started: bool = True) -> Decorator:
    """Return a decorator that runs an async test in a world of its own, as `simulate` does.

    A test that takes ``world``, ``client`` (of that world) or ``tasks`` (of that client) gets them. Without a ``seed``
    here it takes that from pytest, like all its other arguments.
    """

    def decorated(test: AsyncTest) -> Any:
        own = own_arguments(test, ("world", "client", "tasks"))

        async def workload(world: World, given: dict[str, Any]) -> None:
            async with nullcontext() if own <= {"world"} else world.client() as client:
                made: dict[str, Any] = {"world": world, "client": client}
                if client is not None and "tasks" in own:
                    made["tasks"] = Tasks(world, client)
                await test(**given, **{name: made[name] for name in own})

        def run(**given: Any) -> None:
            chosen = given["seed"] if seed is None else seed
            simulate(partial(workload, given=given), seed=chosen, options=options, started=started)

        return seen_by_pytest(test, own, run)

    return decorated
