"""What the task store is meant to be, as a dictionary: entries and real clusters are held against it."""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from onyxq.taskstore import claim, update
from onyxq.taskstore.state import Answer, Refusal, Row


@define
class Model:
    """What the task store is meant to be: a dictionary, and a few rules."""

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
