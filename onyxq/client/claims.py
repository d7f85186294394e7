"""What a claimer holds: claims and batches of them (design: claims, runs).

A claim of many tasks comes as a few runs.  `ClaimBatch` is a sequence that makes a
`Claim` only for what is looked at, and goes back to the server as runs; payloads stay
packed until they are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload
from zlib import crc32

import anyio
from attrs import define, field

from onyxq.core.errors import BadRequest, Corrupt
from onyxq.core.facts import TaskRun, task_header, unpack_task
from onyxq.core.ids import TaskId, Token, counter_of, with_counter

LEASE_MS_MIN = 1_000
"""The shortest lease that there is."""


@define(eq=False, kw_only=True)
class ClaimedRun:
    """Tasks with consecutive ids that were granted together."""

    token: Token = field(converter=Token)
    first: TaskId = field(converter=TaskId)
    count: int = 1
    attempts: int = 0
    body: bytes = b""
    expires: float = 0.0
    """Monotonic second (of the event loop's clock) up to which the lease surely runs."""
    lease_ms: int = 30_000
    due: float = 0.0
    """Monotonic second before which its tasks are not to be begun, if they were claimed ahead; else 0."""
    _header: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _run: TaskRun | None = field(default=None, init=False, repr=False)
    _offsets: list[int] = field(factory=list, init=False, repr=False)

    def id_at(self, index: int) -> TaskId:
        """The id of one task."""
        return with_counter(self.first, counter_of(self.first) + index)

    @property
    def header(self) -> dict[str, Any]:
        """What the tasks share: queue, priority, ..."""
        if self._header is None:
            self._header = task_header(self.body)[0] if self.body else {}
        return self._header

    def payload(self, index: int) -> bytes:
        """The payload of one task; raises `Corrupt` if it is not what was enqueued."""
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
        """Updates of this claim that were acknowledged: the number of the next one."""
        self.unsure: bytes | None = None
        """Data of update ``seq`` if it was sent and its outcome is not known."""
        self.lock: anyio.Lock | None = None
        self._expires = 0.0

    @staticmethod
    def of(task_id: bytes, token: int) -> Claim:
        """A claim known by id and token only: it has no data and no known expiry."""
        return Claim(ClaimedRun(token=token, first=task_id), 0)

    @property
    def id(self) -> TaskId:
        """The task's id."""
        return self.run.id_at(self.index)

    @property
    def token(self) -> Token:
        """Fencing token: higher for every later claim of the task."""
        return self.run.token

    @property
    def due(self) -> float:
        """Monotonic second (of the event loop's clock) before which it is not to be begun; 0 unless it was
        claimed ahead."""
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
        """``json`` or ``bytes``: what ``data`` holds."""
        return str(self.run.header.get("format", "bytes"))

    @property
    def retries(self) -> int | None:
        """Failed attempts after which the task fails for good, beyond the first; None: never.

        25 where the task leaves it to its queue: what that says is not known here.
        """
        retries = self.run.header.get("retries", 25)
        return None if retries is None else int(retries)

    @property
    def trace(self) -> str | None:
        """W3C ``traceparent`` of the span that enqueued it; None: it is not traced."""
        return self.run.header.get("trace")

    @property
    def ordering_key(self) -> str | None:
        """The key whose tasks are worked on one after the other; None: none."""
        return self.run.header.get("ordering_key")

    @property
    def unique_key(self) -> str | None:
        """The key of which the queue has this task only; None: none."""
        return self.run.header.get("unique_key")

    @property
    def depends(self) -> tuple[TaskId, ...]:
        """The tasks that had to be done before this one."""
        return tuple(TaskId(one) for one in self.run.header.get("depends", ()))

    @property
    def attempts(self) -> int:
        """Failed or expired attempts before this one."""
        return self.run.attempts

    @property
    def data(self) -> bytes:
        """The payload; raises `Corrupt` if its checksum does not fit."""
        return self.run.payload(self.index)

    @property
    def expires(self) -> float:
        """Monotonic second (`anyio.current_time`) up to which the lease surely runs."""
        return max(self._expires, self.run.expires)

    def extend(self, expires: float) -> None:
        """The lease of this claim was renewed."""
        self._expires = max(self._expires, expires)

    def __repr__(self) -> str:
        return f"Claim({self.id.hex()}, token={self.token}, queue={self.queue!r})"


class ClaimBatch(Sequence[Claim]):
    """Claims of one call, in the order in which they were granted."""

    def __init__(self, runs: Iterable[ClaimedRun]) -> None:
        self.runs = list(runs)
        self._ends = list(accumulate(run.count for run in self.runs))
        self._claims: dict[int, Claim] = {}

    @staticmethod
    def of(answer: dict[str, Any], *, sent_at: float, lease_ms: int | None = None, now: float = 0.0) -> ClaimBatch:
        """The batch in the answer to a claim request that was sent at ``sent_at`` (monotonic second).

        ``lease_ms``: as it was asked for; without, the answer tells it of each run.  ``now``: when the
        answer came, from which on what was claimed ahead is waited for.
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
        """The payload of every claim; raises `Corrupt`."""
        return [run.payload(i) for run in self.runs for i in range(run.count)]

    @property
    def expires(self) -> float:
        """Monotonic second up to which the lease of every claim surely runs."""
        return min((run.expires for run in self.runs), default=0.0)

    def updated(self) -> bool:
        """Whether updates were sent for any of the claims."""
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
    """Number of updates, where one claim has some."""

    @property
    def item(self) -> list[Any]:
        """What every item of a request begins with: first id, count, token."""
        return [self.run.id_at(self.start), self.size, self.run.token]


def kept_claims(claims: Claims) -> Claims:
    """Claims that can be gone through more than once; raises `BadRequest` for what are none."""
    if isinstance(claims, (Claim, ClaimBatch)):
        return claims
    kept = list(claims)
    if not all(isinstance(claim, Claim) for claim in kept):
        raise BadRequest("claims are what claim() gave, or Claim.of(id, token)", field="claims")
    return kept


def pieces_of(claims: Claims) -> list[Piece]:
    """The claims, in their order, as few pieces."""
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
    """Tasks in the body of a task run."""
    return int.from_bytes(body[4:8], "little")
