"""Scenes about callbacks that wait for a slow receiver, while timers change and leases run out (design: simulation)."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from attrs import define, evolve

from onyxq.core.timer_model import Delivery
from onyxq.interfaces.callbacks.lanes import QUICK
from simulation.checkers import Broken
from simulation.scenes.base import ONE, Scene, back, by_name, leader_of
from simulation.world.clients import RecordingClient
from simulation.world.receiver import CALLBACK, Callback
from simulation.world.workload import always
from simulation.world.world import Options, World

LATER_MS = 3_600_000
DUE_MS = 2_000
TIMERS = 2 * QUICK.lane + 12
"""More than one receiver gets at a time, but not enough to postpone any."""
OVER_S = 30.0


async def changed_while_waiting(world: World) -> None:
    """Many timers fall due together at a slow receiver. Some are replaced or cancelled while they wait."""
    draw = world.random
    world.receiver.takes_s = lambda delivery: draw.uniform(0.5, 0.9)
    async with world.client() as client:
        timers = [f"t{number}" for number in range(TIMERS)]
        await set_all(client, timers, due_s=DUE_MS / 1000)
        await world.until(lambda: len(world.receiver.callbacks) >= QUICK.lane, "the first callbacks are under way")
        changed_s: dict[str, float] = {}
        begun = {one.timer for one in world.receiver.callbacks}
        async with trio.open_nursery() as nursery:
            for timer in draw.sample(sorted(set(timers) - begun), 20):
                nursery.start_soon(_change, client, timer, draw.random() < 0.5, changed_s)
        await trio.sleep(OVER_S)
        late = [one for one in world.receiver.callbacks if one.began_s > changed_s.get(one.timer, one.began_s)]
        if late:
            one = late[0]
            passed_s = one.began_s - changed_s[one.timer]
            raise Broken(f"timers as they are: {one.timer} was delivered {passed_s:.3f} s after it was changed")
        if not changed_s:
            raise Broken("timers as they are: no timer could be changed while it waited")


async def set_all(client: RecordingClient, timers: Sequence[str], *, due_s: float) -> None:
    """Set timers that all fall due ``due_s`` seconds from now."""
    due_s += trio.current_time()

    async def set_one(timer: str) -> None:
        timeout = int(1_000 * (due_s - trio.current_time()))
        await client.client.call("timer.set", {"id": timer, "timeout": timeout, "data": "first", "callback": CALLBACK})

    async with trio.open_nursery() as nursery:
        for timer in timers:
            nursery.start_soon(set_one, timer)


async def _change(client: RecordingClient, timer: str, replaced: bool, changed_s: dict[str, float]) -> None:
    """Replace or cancel a timer, and note when that was acknowledged."""
    if replaced:
        again = {"id": timer, "timeout": LATER_MS, "data": "second", "callback": CALLBACK, "replace": True}
        await client.client.call("timer.set", again)
    else:
        await client.client.call("timer.cancel", {"id": timer})
    changed_s[timer] = trio.current_time()


# --- leases of callbacks ----------------------------------------------------------------------------


BLOCKED_S, LONG_S = 15.0, 29.0
"""Seconds that the first callbacks take, and that the last one takes, which waited for them."""
TIMEOUT_MS = 30_000


@define
class _Blocked:
    """The first callbacks keep another one waiting, which then takes nearly as long as is allowed."""

    first: int = QUICK.lane

    def takes_s(self, delivery: Delivery) -> float:
        """How long a callback takes."""
        if self.first:
            self.first -= 1
            return BLOCKED_S
        return LONG_S


async def waited_for_long(world: World) -> None:
    """A callback waits for half of its lease and then takes long. It must not run twice at the same time."""
    world.receiver.takes_s = _Blocked().takes_s
    async with world.client() as client:
        await set_all(client, [f"t{number}" for number in range(QUICK.lane + 1)], due_s=DUE_MS / 1000)
        await trio.sleep(DUE_MS / 1000 + BLOCKED_S + 4 * TIMEOUT_MS / 1000)
    for timer in {one.timer for one in world.receiver.callbacks}:
        check_alone([one for one in world.receiver.callbacks if one.timer == timer])


async def cut_off_caller(world: World) -> None:
    """A callback waits at a node that is cut off from the log, until another node has made it."""
    world.receiver.takes_s = lambda delivery: BLOCKED_S
    async with world.client() as client:
        await set_all(client, [f"t{number}" for number in range(QUICK.lane + 1)], due_s=DUE_MS / 1000)
        await world.until(lambda: len(world.receiver.callbacks) >= QUICK.lane, "the first callbacks are under way")
        begun = {one.timer for one in world.receiver.callbacks}
        world.receiver.takes_s = lambda delivery: 0.0 if delivery.timer in begun else BLOCKED_S
        node = leader_of(world)
        world.disconnect_log(node)
        await trio.sleep(2 * BLOCKED_S)
        await back(world, node)
        await trio.sleep(OVER_S)
    waited = [one for one in world.receiver.callbacks if one.timer not in begun]
    if not waited:
        raise Broken("one callback at a time: the callback that waited was never made")
    check_alone(waited)


def check_alone(callbacks: Sequence[Callback]) -> None:
    """Raise `Broken` if two callbacks of one timer ran at the same time."""
    for one, following in zip(callbacks, callbacks[1:], strict=False):
        if one.ended_s is None or one.ended_s > following.began_s:
            raise Broken(f"one callback at a time: {one.timer}, attempts {one.attempt} and {following.attempt}")


AGAIN_S = ONE.session_timeout_ms / 1000 + 1.0
"""Callbacks of a dead node are made again within this time of its death."""


async def dead_caller(world: World) -> None:
    """A node dies while its callbacks run, and comes back or not. Nothing else happens in the cluster."""
    draw = world.random
    world.receiver.takes_s = lambda delivery: 9.0 if delivery.attempt == 1 else 0.1
    async with world.client() as client:
        await set_all(client, [f"t{number}" for number in range(3)], due_s=DUE_MS / 1000)
        await trio.sleep(DUE_MS / 1000 + draw.uniform(0.5, 8.5))
        dead, died_s = leader_of(world), trio.current_time()
        await world.crash_node(dead)
        await trio.sleep(AGAIN_S if draw.random() < 0.5 else AGAIN_S / 2)
        world.start_node(dead)
        await trio.sleep(OVER_S)
        await world.settle()
    again_s = [one.began_s - died_s for one in world.receiver.callbacks if one.attempt > 1]
    if len(again_s) != 3 or min(again_s) < 0 or max(again_s) > AGAIN_S:
        shown = ", ".join(f"{late:.3f}" for late in again_s)
        raise Broken(f"callbacks again: a node died, and its callbacks were repeated after these seconds: {shown}")


_CALLED = always(evolve(ONE, callbacks=True))
_CALLED_SLOWLY = always(Options(partitions=1, clock_offset_ms=0, callbacks=True, timer_timeout_ms=TIMEOUT_MS))

TIMER_SCENES = by_name(
    Scene("timers_changed", "timers are replaced and cancelled while they wait", changed_while_waiting, _CALLED),
    Scene("timers_again", "a node dies while its callbacks run", dead_caller, _CALLED),
    Scene("timers_cut_off", "a callback waits at a node without the log", cut_off_caller, _CALLED_SLOWLY),
    Scene("timers_late", "a callback waits until half of its lease is over", waited_for_long, _CALLED_SLOWLY),
)
