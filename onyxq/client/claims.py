"""Claims that a client holds, one by one and in batches (design: claims, runs).

A claim of many tasks arrives as a few runs, and goes back to the server as runs. `ClaimBatch` is a sequence
that creates a `Claim` only when you access it. Payloads stay packed until you read them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload
from zlib import crc32

import anyio
from attrs import define, evolve, field, setters

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import TaskRun, task_header, unpack_task
from onyxq.core.ids import TaskId, Token, counter_of, with_counter
from onyxq.core.limits import LEASE_MS_MIN
from onyxq.core.queue_settings import DEFAULTS


@define(eq=False, kw_only=True, on_setattr=setters.NO_OP)
class ClaimedRun:
    """Tasks with consecutive ids that were granted together."""

    token: Token = field(converter=Token)
    first: TaskId = field(converter=TaskId)
    count: int = 1
    attempts: int = 0
    body: bytes = b""
    expires: float = 0.0
    """Monotonic second (of the event loop's clock) until which the lease is certainly valid."""
    lease_ms: int = DEFAULTS.lease_ms
    due: float = 0.0
    """Monotonic second before which the tasks must not start, if they were claimed ahead; otherwise 0."""
    _header: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _run: TaskRun | None = field(default=None, init=False, repr=False)
    _offsets: list[int] = field(factory=list, init=False, repr=False)
    _whole: ClaimedRun | None = field(default=None, init=False, repr=False)
    """The run that this is a part of; it holds the header and the payloads."""
    _start: int = field(default=0, init=False, repr=False)
    """Index of the first task in the whole run."""

    def part(self, start: int, count: int) -> ClaimedRun:
        """Return some of the tasks as a run with a lease of its own."""
        part = evolve(self, first=self.id_at(start), count=count)
        part._whole, part._start = self._whole or self, self._start + start
        return part

    def id_at(self, index: int) -> TaskId:
        """Return the id of the task at ``index``."""
        return with_counter(self.first, counter_of(self.first) + index)

    @property
    def header(self) -> dict[str, Any]:
        """The options that the tasks share: queue, priority and others."""
        if self._whole is not None:
            return self._whole.header
        if self._header is None:
            self._header = task_header(self.body)[0] if self.body else {}
        return self._header

    def payload(self, index: int) -> bytes:
        """Return the payload of one task; raise `Corrupt` if its checksum does not match."""
        if self._whole is not None:
            return self._whole.payload(self._start + index)
        if not self.body:
            return b""
        if self._run is None:
            self._run = unpack_task(self.body)
            self._offsets = list(accumulate(self._run.lengths, initial=0))
        data = self._run.payloads[self._offsets[index] : self._offsets[index + 1]]
        if crc32(data) != self._run.checksums[index]:
            raise Corrupt(f"the payload of task {self.id_at(index).hex()} does not match its checksum")
        return data


class Claim:
    """A lease on one task."""

    __slots__ = ("_expires", "index", "lock", "run", "seq", "unsure")

    def __init__(self, run: ClaimedRun, index: int) -> None:
        self.run = run
        self.index = index
        self.seq = 0
        """Number of acknowledged updates of this claim; also the number of the next update."""
        self.unsure: bytes | None = None
        """Data of update ``seq`` if it was sent and its outcome is unknown."""
        self.lock: anyio.Lock | None = None
        self._expires = 0.0

    @staticmethod
    def of(task_id: bytes, token: int) -> Claim:
        """Return a claim known only by id and token: it has no data and no known expiry. Raise `BadRequest`."""
        if type(token) is not int:
            raise BadRequest(f"a fencing token is a whole number, not {type(token).__name__}", field="token")
        return Claim(ClaimedRun(token=token, first=task_id), 0)

    @property
    def id(self) -> TaskId:
        """The task's id."""
        return self.run.id_at(self.index)

    @property
    def token(self) -> Token:
        """Fencing token; it rises with every claim of the task."""
        return self.run.token

    @property
    def due(self) -> float:
        """Monotonic second (of the event loop's clock) before which the task must not start; 0 if not claimed ahead."""
        return self.run.due

    @property
    def queue(self) -> str:
        """The task's queue."""
        return str(self.run.header.get("queue", ""))

    @property
    def priority(self) -> int:
        """The task's priority."""
        return int(self.run.header.get("priority", 0))

    @property
    def format(self) -> str:
        """Kind of the payload in ``data``: ``json`` or ``bytes``."""
        return str(self.run.header.get("format", "bytes"))

    @property
    def retries(self) -> int | None:
        """Failed attempts allowed beyond the first; None for no limit.

        The default of queues if the task leaves this to its queue: the claim does not know the queue's setting.
        """
        retries = self.run.header.get("retries", DEFAULTS.retries)
        return None if retries is None else int(retries)

    @property
    def trace(self) -> str | None:
        """W3C ``traceparent`` of the span that enqueued the task; None if it is not traced."""
        return self.run.header.get("trace")

    @property
    def ordering_key(self) -> str | None:
        """The ordering key; tasks of one key run one after the other. None for none."""
        return self.run.header.get("ordering_key")

    @property
    def unique_key(self) -> str | None:
        """The unique key, which one task of a queue holds at a time. None for none."""
        return self.run.header.get("unique_key")

    @property
    def depends(self) -> tuple[TaskId, ...]:
        """Ids of the tasks that this task depends on."""
        return tuple(TaskId(one) for one in self.run.header.get("depends", ()))

    @property
    def attempts(self) -> int:
        """Number of failed or expired attempts before this one."""
        return self.run.attempts

    @property
    def data(self) -> bytes:
        """The payload; raises `Corrupt` if its checksum does not match."""
        return self.run.payload(self.index)

    @property
    def expires(self) -> float:
        """Monotonic second (`anyio.current_time`) until which the lease is certainly valid."""
        return max(self._expires, self.run.expires)

    def extend(self, expires: float) -> None:
        """Record that the lease was renewed until ``expires`` (monotonic second)."""
        self._expires = max(self._expires, expires)

    def __repr__(self) -> str:
        return f"Claim({self.id.hex()}, token={self.token}, queue={self.queue!r})"


class ClaimBatch(Sequence[Claim]):
    """Claims from one call, in the order in which they were granted."""

    def __init__(self, runs: Iterable[ClaimedRun]) -> None:
        self.runs = list(runs)
        self._ends = list(accumulate(run.count for run in self.runs))
        self._claims: dict[int, Claim] = {}

    @staticmethod
    def of(answer: dict[str, Any], *, sent_at: float, lease_ms: int | None = None, now: float = 0.0) -> ClaimBatch:
        """Return the batch in the answer to a claim request.

        ``sent_at``: when the request was sent (monotonic second). ``lease_ms``: the lease that was requested; None if
        the answer holds that of each run. ``now``: when the answer arrived (monotonic second); waiting times of tasks
        claimed ahead count from it.
        """
        runs = answer["claims"]
        due_in_ms = answer.get("due_in_ms") or [0] * len(runs)
        leases = answer.get("leases") if lease_ms is None else [lease_ms] * len(runs)
        return ClaimBatch(
            ClaimedRun(
                token=token,
                first=first,
                count=task_count(body),
                attempts=attempts,
                body=body,
                expires=sent_at + lease / 1000,
                lease_ms=lease,
                due=now + ahead / 1000 if ahead else 0.0,
            )
            for (token, _, attempts, first, body), lease, ahead in zip(
                runs, leases or [LEASE_MS_MIN] * len(runs), due_in_ms, strict=True
            )
        )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Claim: ...
    @overload
    def __getitem__(self, index: slice) -> list[Claim]: ...
    def __getitem__(self, index: int | slice) -> Claim | list[Claim]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"claim {index} of {len(self)}")
        return self._at(index % len(self))

    def __iter__(self) -> Iterator[Claim]:
        return map(self._at, range(len(self)))

    def __repr__(self) -> str:
        return f"<ClaimBatch of {len(self)} claims in {len(self.runs)} runs>"

    @property
    def payloads(self) -> list[bytes]:
        """The payload of every claim; raises `Corrupt` if a checksum does not match."""
        return [run.payload(i) for run in self.runs for i in range(run.count)]

    @property
    def expires(self) -> float:
        """Monotonic second until which every lease is certainly valid; 0 for an empty batch."""
        return min((run.expires for run in self.runs), default=0.0)

    def updated(self) -> bool:
        """Return whether updates were sent for any of the claims."""
        return any(claim.seq for claim in self._claims.values())

    def _at(self, index: int) -> Claim:
        claim = self._claims.get(index)
        if claim is None:
            place = bisect_right(self._ends, index)
            start = self._ends[place - 1] if place else 0
            claim = self._claims[index] = Claim(self.runs[place], index - start)
        return claim


Claims = Claim | ClaimBatch | Iterable[Claim]


class Piece(NamedTuple):
    """Consecutive claims of one run."""

    run: ClaimedRun
    start: int
    size: int
    seq: int | None
    """Number of updates, if the piece is one claim that has some."""

    @property
    def item(self) -> list[Any]:
        """The start of every request item: first id, count, token."""
        return [self.run.id_at(self.start), self.size, self.run.token]


def kept_claims(claims: Claims) -> Claims:
    """Return claims that can be iterated more than once; raise `BadRequest` if one is not a `Claim`."""
    if isinstance(claims, (Claim, ClaimBatch)):
        return claims
    kept = list(claims)
    if not all(isinstance(claim, Claim) for claim in kept):
        raise BadRequest("claims are what claim() gave, or Claim.of(id, token)", field="claims")
    return kept


def pieces_of(claims: Claims) -> list[Piece]:
    """Return the claims in their order, as few pieces."""
    if isinstance(claims, Claim):
        return [Piece(claims.run, claims.index, 1, claims.seq or None)]
    if isinstance(claims, ClaimBatch) and not claims.updated():
        return [Piece(run, 0, run.count, None) for run in claims.runs]
    pieces: list[Piece] = []
    for claim in claims:
        if pieces and not claim.seq:
            run, start, size, seq = pieces[-1]
            if claim.run is run and claim.index == start + size and seq is None:
                pieces[-1] = Piece(run, start, size + 1, None)
                continue
        pieces.append(Piece(claim.run, claim.index, 1, claim.seq or None))
    return pieces


def task_count(body: bytes) -> int:
    """Return the number of tasks in the body of a task run."""
    return int.from_bytes(body[4:8], "little")
