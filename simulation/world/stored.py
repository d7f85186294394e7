"""The task store held against what it is meant to be: a dictionary, and a few rules (design: transactions).

`Model` is fed the requests in the order of the log; `Truth` goes through a log with it, and keeps
what must have been answered.  Requests carry marks by which they are found there again: an
update's first add has it as data, a claim as its duration in milliseconds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from onyxq.core.entry import Entries
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.core.step import Outcome, step
from onyxq.core.taskstore import claim, state, update
from onyxq.core.taskstore.state import Answer, Refusal, Row

ENTRIES = ("taskstore.claim", "taskstore.update")


@define
class Model:
    """Reference model of the task store: a dictionary and a few rules."""

    tasks: dict[int, Row] = field(factory=dict)
    highest: int = 0

    def update(self, args: update.Args, now_ms: int, made: list[int]) -> Answer:
        """What is answered; ``made``: the ids that new tasks got."""
        changes = [number for number, _, _ in args.changes]
        touched = [*changes, *args.deletes]
        wrong = Refusal(
            changes=tuple(number for number in changes if number not in self.tasks),
            deletes=tuple(number for number in args.deletes if number not in self.tasks),
            depends=tuple(number for number in args.depends if number not in self.tasks),
            owned=tuple(dict.fromkeys(number for number in touched if self.owned(number, args.client, now_ms))),
        )
        twice = any(times > 1 for times in Counter(touched).values())
        nothing = not (touched or args.adds)
        if any(wrong) or twice or nothing:
            return (), tuple(wrong)
        new = [(group, data, at_ms) for group, data, at_ms in args.adds]
        new += [(self.tasks[number][0], data, at_ms) for number, data, at_ms in args.changes]
        for number in touched:
            del self.tasks[number]
        rows = [(group, at_ms if at_ms > 0 else now_ms - at_ms, args.client, data) for group, data, at_ms in new]
        return self.put(rows, made), ()

    def claim(self, args: claim.Args, now_ms: int, made: list[int], gone: int | None) -> Answer:
        """What is answered; ``gone``: the task that was taken, of those that are available."""
        missing = tuple(number for number in args.depends if number not in self.tasks)
        if missing:
            return (), tuple(Refusal(depends=missing))
        available = [n for n, (group, at_ms, _, _) in self.tasks.items() if group == args.group and at_ms <= now_ms]
        if not available:
            return (), ()
        assert gone in available
        group, _, _, data = self.tasks.pop(gone)
        return self.put([(group, now_ms + max(0, args.duration_ms), args.client, data)], made), ()

    def owned(self, number: int, client: int, now_ms: int) -> bool:
        """Whether another has the task."""
        _, at_ms, owner, _ = self.tasks.get(number, ("", 0, client, ""))
        return at_ms > now_ms and owner != client

    def put(self, rows: list[Row], made: list[int]) -> tuple[tuple[int, Row], ...]:
        """New tasks under ids that must rise."""
        assert made == sorted(set(made)) and len(made) == len(rows)
        assert not made or made[0] > self.highest, "ids rise, and none comes back"
        self.highest = max([self.highest, *made])
        self.tasks.update(zip(made, rows, strict=True))
        return tuple(zip(made, rows, strict=True))


@define
class Requests:
    """Requests at random, each marked, about tasks that were there lately."""

    random: random.Random
    groups: Sequence[str]
    seen: list[int] = field(factory=lambda: [1])
    """Ids in the order in which they were answered."""
    marks: int = 0

    def next(self) -> tuple[int, str, dict[str, Any]]:
        """A mark, ``update`` or ``claim``, and its arguments but for who asks."""
        self.marks += 1
        group, few = self.random.choice(self.groups), (0, 0, 1, 2)
        if self.random.random() < 0.5:
            return self.marks, "claim", {"group": group, "duration_ms": self.marks}
        return (
            self.marks,
            "update",
            {
                "adds": [[group, str(self.marks), 0]],
                "changes": [[number, "changed", -5] for number in self._numbers(few)],
                "deletes": self._numbers(few),
                "depends": self._numbers((0, 1)),
            },
        )

    def _numbers(self, counts: Sequence[int]) -> list[int]:
        return [self.random.choice(self.seen[-12:]) for _ in range(self.random.choice(counts))]


@define
class Truth:
    """A log, gone through with the model beside the state machine; `Broken` is raised where they differ."""

    model: Model = field(factory=Model)
    answers: dict[int, list[Answer]] = field(factory=dict)
    """Mark -> what the model answers at each place where the request stands; it may have been repeated."""
    position: int = 0

    def follow(self, replica: Replica, records: Iterable[Record], entries: Entries) -> Replica:
        """Follow the records after the replica; return the replica at the end, which must hold what the model holds."""
        for record in records:
            if record.position <= replica.position:
                continue
            seen: list[tuple[Outcome, Replica]] = []
            done = step(replica, record, entries, after_each=lambda one, after, seen=seen: seen.append((one, after)))  # type: ignore[misc]
            for outcome, after in seen:
                if outcome.name in ENTRIES and record.position > self.position:
                    self._apply(outcome.args, replica, after, record.position)
                replica = after
            replica = done.replica
        self.position = max(self.position, replica.position)
        store = state.read(replica)
        kept = {number: row for part in store.tasks.values() for number, row in part.items()}
        assert kept == self.model.tasks, "the store is not what the log made of it"
        return replica

    def _apply(self, args: Any, before: Replica, after: Replica, position: int) -> None:
        found, now_ms = state.answer_of(after, position, args.request), after.clock_ms
        assert found is not None, "every request has its answer behind its record"
        made = [number for number, _ in found[0]]
        if isinstance(args, update.Args):
            mark, said = int(args.adds[0][1]), self.model.update(args, now_ms, made)
        else:
            assert isinstance(args, claim.Args)
            was, now = state.read(before).tasks, state.read(after).tasks
            changed = [part for part in was if was[part] is not now.get(part)]
            gone = [number for part in changed for number in was[part] if number not in now.get(part, ())]
            mark, said = args.duration_ms, self.model.claim(args, now_ms, made, gone[0] if gone else None)
        assert said[0] == found[0], f"request {mark} gives other tasks than the model: {found[0]}, not {said[0]}"
        assert said[1][:4] == found[1][:4], f"request {mark} is refused for {found[1]}, by the model for {said[1]}"
        self.answers.setdefault(mark, []).append(said)


def as_answered(answer: Answer) -> list[Any]:
    """Return the answer to a client: new tasks, or None and four of the lists."""
    tasks, refusal = answer
    if refusal:
        return [None, *map(list, Refusal(*refusal)[:4])]
    return [[number, group, at_ms, owner, data] for number, (group, at_ms, owner, data) in tasks]
