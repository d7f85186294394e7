"""What limits, transactions and periodic tasks must do, said once more and plainly (design: simulation).

Next to `simulation.search.claims`, which asks these models about every entry and tells them what
came of it.  They share no code with the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from attrs import define, field

from onyxq.core.replica import Replica

Task: TypeAlias = tuple[bytes, int]
"""The id without its counter, and the counter."""

TASK = 1_000_000
"""One task of a bucket: a rate of 1, a task in 1,000 s, adds one in a millisecond."""


@define
class _Settings:
    concurrency: int = 0
    rate: int = 0
    paused: bool = False


@define(eq=False)
class LimitsModel:
    """Queues' limits, and which claimed tasks count towards them."""

    settings: dict[str, _Settings] = field(factory=dict)
    buckets: dict[str, tuple[int, int]] = field(factory=dict)
    queue_of: dict[tuple[int, Task], str] = field(factory=dict)
    """(partition, task) -> the queue that its claim counts for."""

    def set(self, args: Any) -> None:
        """Settings were changed."""
        found = self.settings.setdefault(args.queue, _Settings())
        found.concurrency = args.numbers.get("concurrency", found.concurrency)
        found.rate = args.numbers.get("rate", found.rate)
        found.paused = args.flags.get("paused", found.paused)
        if not found.rate:
            self.buckets.pop(args.queue, None)

    def allows(self, queue: str, count: int, clock_ms: int) -> str:
        """Return why a grant of ``count`` tasks must be refused, or an empty string."""
        found = self.settings.get(queue, _Settings())
        if found.paused:
            return "paused"
        running = sum(1 for name in self.queue_of.values() if name == queue)
        if found.concurrency and running + count > found.concurrency:
            return "over the limit"
        return "over the limit" if found.rate and count * TASK > self._left(queue, found.rate, clock_ms) else ""

    def _left(self, queue: str, rate: int, clock_ms: int) -> int:
        full = max(TASK, 1_000 * rate)
        left, at_ms = self.buckets.get(queue, (full, clock_ms))
        return min(full, left + (clock_ms - at_ms) * rate)

    def granted(self, queue: str, partition: int, tasks: list[Task], clock_ms: int) -> None:
        """These count from now on."""
        rate = self.settings.get(queue, _Settings()).rate
        if rate:
            self.buckets[queue] = self._left(queue, rate, clock_ms) - len(tasks) * TASK, clock_ms
        for task in tasks:
            self.queue_of[partition, task] = queue

    def compare(self, replica: Replica) -> str:
        """What the replica counts otherwise, in words."""
        counted = {
            (int.from_bytes(stretch[6:8], "big"), (stretch[:16], int.from_bytes(stretch[16:], "big") + at)): queue
            for stretch, parts in replica.limited.items()
            for queue, offset, count in parts
            for at in range(offset, offset + count)
        }
        if counted != self.queue_of:
            return f"{len(counted)} tasks count towards limits, not {len(self.queue_of)}"
        names = list(self.queue_of.values())
        running = {name: names.count(name) for name in names}
        if dict(replica.running) != running:
            return f"running are {dict(replica.running)}, not {running}"
        return "" if dict(replica.rates) == self.buckets else f"buckets are {dict(replica.rates)}, not {self.buckets}"


@define(eq=False)
class TransactionsModel:
    """Which transactions are under way, which are remembered."""

    open: dict[str, tuple[int, set[int], int]] = field(factory=dict)
    """Name -> position, parts left, for how long it is remembered."""
    over: dict[str, int] = field(factory=dict)
    """Name -> until when, by the log's clock, it is remembered at least."""

    def knows(self, name: str) -> bool:
        """Whether a commit of this name is a repeat."""
        return name in self.open or name in self.over

    def committed(self, args: Any, replica: Replica) -> None:
        """A commit was applied."""
        parts = {part.partition for part in args.parts}
        if parts:
            self.open[args.name] = replica.position, parts, args.keep_ms
        else:
            self.over[args.name] = replica.clock_ms + args.keep_ms

    def is_left(self, name: str, partition: int) -> bool:
        """Whether a part of it is left to settle."""
        return name in self.open and partition in self.open[name][1]

    def may_settle(self, names: Sequence[str], partition: int, position: int) -> bool:
        """Whether a part of any is left to settle, and no part of those was committed at this position."""
        left = [name for name in names if self.is_left(name, partition)]
        return bool(left) and all(self.open[name][0] != position for name in left)

    def settled(self, name: str, partition: int, replica: Replica) -> None:
        """A part of it is visible."""
        _, parts, keep_ms = self.open[name]
        parts.discard(partition)
        if not parts:
            del self.open[name]
            self.over[name] = replica.clock_ms + keep_ms

    def collected(self, replica: Replica) -> None:
        """A collection forgets."""
        self.over = {name: until_ms for name, until_ms in self.over.items() if until_ms > replica.clock_ms}

    def compare(self, replica: Replica) -> str:
        """What the replica has otherwise, in words."""
        there = {name: set(found.parts) for name, found in replica.transactions.items()}
        here = {name: parts for name, (_, parts, _) in self.open.items()}
        return "" if there == here else f"transactions are {there}, not {here}"


@define(eq=False)
class PeriodicModel:
    """When each periodic task is due next: no time may pass twice."""

    due: dict[str, tuple[str, bool, int]] = field(factory=dict)
    """Name -> schedule, paused, next time."""

    def set(self, args: Any) -> None:
        """One was set up or changed."""
        schedule, paused, next_ms = self.due.get(args.name, ("", False, args.next_ms))
        if schedule != args.schedule or (paused and not args.paused):
            next_ms = args.next_ms
        self.due[args.name] = args.schedule, args.paused, next_ms

    def pause(self, args: Any) -> None:
        """One was paused or resumed."""
        schedule, _, next_ms = self.due[args.name]
        self.due[args.name] = schedule, args.paused, next_ms if args.paused else args.next_ms

    def fire(self, args: Any) -> bool:
        """Whether the time has not been fired yet; then it is."""
        schedule, paused, next_ms = self.due.get(args.name, ("", False, -1))
        if next_ms != args.fired_ms:
            return False
        self.due[args.name] = schedule, paused, args.next_ms
        return True
