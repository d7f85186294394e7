"""Moves: inputs become outputs by transactions, as maps and reduces of a word count do (design: simulation).

A mover claims inputs and, in one transaction, completes them and enqueues what they become:
a map makes several of one, a reduce one of several.  With any faults, each
input counts once.  When the faults are over everything is worked off, and no pending fact
of a transaction is left anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio
from attrs import frozen

from onyxq.client import AsyncTransaction, Claim
from onyxq.core.errors import OnyxqError
from simulation.world.clients import RecordingClient, tried
from simulation.world.load import CALL_TIMEOUT_MS, open_tasks, under_faults, worked_off
from simulation.world.world import World

IN, MID, OUT = "in", "mid", "out"
CLEAN_S = 120.0
"""Simulated seconds in which pending facts of transactions that were given up must be gone."""


@frozen
class MovesMix:
    """How movers behave."""

    mappers: int = 2
    reducers: int = 1
    batch_max: int = 6
    pause_s: float = 2.0
    backlog_max: int = 60
    lease_ms: tuple[int, int] = (1_500, 8_000)
    work_s: float = 0.3
    forget: float = 0.05
    near: float = 0.15
    """How often a commit comes around the end of the lease."""
    update: float = 0.2
    require: float = 0.2
    insist: float = 0.5
    """How often a transaction whose outcome is unknown is sent once more."""
    repeat: float = 0.1
    """How often a committed transaction is sent again."""
    plain: float = 0.05
    """How often an input is completed, or fails, without a transaction."""


class Moves:
    """See the module's first paragraph."""

    def __init__(self, world: World, mix: MovesMix | None = None, *, first: int = 0) -> None:
        """``first``: where the numbers begin by which payloads and results differ."""
        self.world = world
        self.mix = mix or MovesMix()
        self._random = random.Random(world.random.getrandbits(64))
        self._made = self._tries = first
        self._draining = False
        self._stopped = False

    def start(self, nursery: trio.Nursery) -> None:
        """Begin; the nursery ends them."""
        nursery.start_soon(self._produce)
        for _ in range(self.mix.mappers):
            nursery.start_soon(self._move, IN, MID)
        for _ in range(self.mix.reducers):
            nursery.start_soon(self._move, MID, OUT)

    async def _produce(self) -> None:
        history = self.world.history
        async with self.world.client() as client:
            while not self._draining:
                if len(history.enqueued) - len(history.completed) > self.mix.backlog_max:
                    await trio.sleep(0.5)
                    continue
                count = self._random.randint(1, self.mix.batch_max)
                payloads = [b"input %d" % (self._made + number) for number in range(count)]
                self._made += count
                try:
                    await client.enqueue(IN, payloads, retries=None, backoff_ms=100, timeout_ms=CALL_TIMEOUT_MS)
                except OnyxqError:
                    continue  # noted by the client; these may exist or not
                await trio.sleep(self._random.uniform(0, self.mix.pause_s))

    async def _move(self, source: str, target: str) -> None:
        draw = self._random
        async with self.world.client() as client:
            while not self._stopped:
                lease_ms = draw.randint(*self.mix.lease_ms)
                try:
                    claims = list(
                        await client.claim(
                            source,
                            maximum=draw.randint(1, 4),
                            lease_ms=lease_ms,
                            wait_ms=draw.choice((0, 500, 2_000)),
                            timeout_ms=CALL_TIMEOUT_MS,
                        )
                    )
                except OnyxqError:
                    await trio.sleep(0.2)
                    continue
                if not claims:
                    await trio.sleep(0.05)
                    continue
                await tried(self._handle(client, claims, target))

    async def _handle(self, client: RecordingClient, claims: list[Claim], target: str) -> None:
        mix, draw = self.mix, self._random
        calm = self._draining
        await trio.sleep(draw.uniform(0, mix.work_s) * (0.05 if calm else 1.0))
        if not calm and draw.random() < mix.forget:
            return
        if not calm and draw.random() < mix.near:
            await trio.sleep(max(0.0, claims[0].expires - trio.current_time() + draw.uniform(-0.4, 1.5)))
        if not calm and len(claims) > 1 and draw.random() < mix.plain:
            await client.fail(claims.pop(), "not now", retry_in_ms=100, timeout_ms=CALL_TIMEOUT_MS)
        if target == OUT:
            groups = [claims]  # a reduce: one of several
        else:
            groups = [[claim] for claim in claims]
        required = claims[-1] if len(groups) > 1 else None
        for place, group in enumerate(groups):
            keep = [required] if required is not None and place + 1 < len(groups) else []
            await self._commit(client, group, target, [one for one in keep if draw.random() < mix.require])

    async def _commit(self, client: RecordingClient, claims: list[Claim], target: str, require: list[Claim]) -> None:
        mix, draw = self.mix, self._random
        self._tries += 1
        count = 1 if target == OUT else draw.randint(1, 3)
        said = b"by try %d" % self._tries
        moved = await client.transact(
            complete=[(claim, said) for claim in claims],
            update=[(claims[0], b"note " + said)] if draw.random() < mix.update else [],
            enqueue=[(target, b"%s %d of %s" % (said, number, claims[0].data)) for number in range(count)],
            require=require,
            insist=draw.random() < mix.insist,
            timeout_ms=CALL_TIMEOUT_MS,
            retries=None,
            backoff_ms=100,
        )
        if draw.random() < mix.repeat:
            await self._send_again(client, moved)

    async def _send_again(self, client: RecordingClient, moved: AsyncTransaction) -> None:
        """A repeat hears the first answer."""
        args, committed = moved._args, moved.committed
        assert args is not None and committed is not None
        answer = await client.client.call("transact", args, timeout_ms=CALL_TIMEOUT_MS)
        if answer["token"] != committed.token:
            raise self.world.audit.all_or_nothing.broken(f"a repeat of {committed} was told {answer}")

    async def drain(self) -> None:
        """Have everything worked off; `AssertionError` if there is no progress for too long, or rubbish is left."""
        self._draining = True
        await worked_off(self.world, lambda client: open_tasks(client, (IN, MID)))
        self._stopped = True
        await self.world.until(lambda: not self.world.audit.replica.transactions, "what was committed is visible")
        await self.world.until(lambda: not self._rubbish(), "no pending fact is left", within_s=CLEAN_S)

    def _rubbish(self) -> list[tuple[str, str]]:
        """Return the pending facts on running nodes; raise if a committed part of a transaction was lost."""
        for node in self.world.nodes:
            if node.inner is not None and node.inner.operations.transaction_parts.applier.lost:
                raise self.world.audit.all_or_nothing.broken(f"{node.name} found that what was committed is lost")
        return self.world.pending()


async def under_moves(world: World, faults: Callable[[World], Awaitable[object]], mix: MovesMix | None = None) -> Moves:
    """Cause faults while inputs are moved; then the cluster must recover and complete everything."""
    moves = Moves(world, mix)
    await under_faults(world, moves, faults)
    return moves
