"""Claims across the cluster: which nodes are asked, and how claimers wait until there are tasks.

For every queue that a claimer here waits on, this node keeps a question open at each node that leads
partitions: "answer when your best ready task is better than the one I know".  The answer describes the
present state, so lost messages, reconnections and elections lose nothing.  The question is repeated each
second, and less often where nothing was ready for a while.  A claimer asks the nodes that have the best
tasks, each for the number that `onyxq.operations.claim_shares` finds: exact when quiet, approximate under
load.  For a claimer that claims ahead, tasks that fall due soon count as well.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import trio
from attrs import define, field

from onyxq.core.errors import LogUnavailable, OnyxqError, Unavailable, from_map
from onyxq.core.replica import leader_node, live_nodes, unserved
from onyxq.leader.grants.claims_here import Asked, claim_here
from onyxq.leader.grants.granter import Granted
from onyxq.leader.grants.ready_heads import Head, is_ahead, unpack_head
from onyxq.node.node import Node
from onyxq.operations.checks.peers import WANTED_MAX
from onyxq.operations.claim_shares import Offer, shares
from onyxq.operations.table.claim import ClaimTasks, GrantedTasks
from onyxq.system.procedures import CANCELLED, Ended, Question, Wait, pause, procedure, stop_if_cancelled
from onyxq.system.signal import Signal
from onyxq.wire.bounds import OWNER, has_room

POLL_S = 1.0
IDLE_POLL_S = 4.0
"""How long a question stays open after one that ended without news, in seconds.

The node that was asked keeps a withdrawn question until its time is up. After news the shorter `POLL_S` holds.
"""
LINGER_S = 3.0
"""How long a queue is watched after its last claimer left, in seconds."""
ASK_TIMEOUT_S = 5.0
FIRST_ANSWERS_S = 1.0
"""Longest time in which a claim that does not wait hears from all leaders, in seconds."""
FIRST_LOOK_S = 0.1
"""How long a claimer waits for nodes that were never asked about its queue, in seconds."""
LOG_PATIENCE_S = 2.0
"""How long claimers continue to wait while the log is away, in seconds."""
CLAIMERS_MAX = 50_000
"""Most claims that wait at this node; `onyxq.wire.bounds.has_room` limits the share of one credential."""
WANTED_CLAIMERS = 64
"""Number of waiting claimers whose demand is added up."""
AHEAD_AGAIN_S = 0.05
"""Time, in seconds, in which a claimer that got nothing ahead asks only for ready tasks."""
GATHER_S = 0.5
"""How long a claimer with tasks of one node waits for the other nodes that were asked, in seconds."""
ANSWER_BYTES_MAX = 18 * 1024 * 1024
"""Most bytes of task rows in one answer, unless one row is larger; the rest is given back."""
ASKS_MAX = 2
"""Largest number of questions in flight to one node. Further claimers wait and share the next question."""


class Waiting(NamedTuple):
    """The waiting claims of a worker."""

    claims: int
    tasks: int
    """Number of tasks that they ask for."""
    queues: list[str]


@define(eq=False)
class Claimer:
    """One claim of one client, waiting or being answered."""

    queues: Sequence[str]
    maximum: int
    lease_ms: int
    """Lease in ms; 0 means the lease of each queue."""
    worker: str
    deadline: float
    owner: str = ""
    """The credential that it came with; see `onyxq.wire.bounds.OWNER`."""
    ahead_ms: int = 0
    """Longest time by which tasks are claimed before they are due, if none is ready, in ms."""
    gone: bool = False
    asking: int = 0
    """Number of nodes that were asked for it and have not answered."""
    granted: list[Granted] = field(factory=list)
    """Grants of the first nodes, while it waits for the others."""
    ahead_again_at: float = 0.0
    """Time from which it may ask for tasks that are not due yet."""
    asks_ahead: bool = False
    """Whether it asks for tasks that are not due yet."""
    trouble: OnyxqError | None = None
    over: Wait = field(factory=Wait)
    answer: GrantedTasks | OnyxqError | None = None

    @staticmethod
    def of(args: ClaimTasks) -> Claimer:
        """Return a claim that begins to wait now."""
        return Claimer(
            queues=args.queues,
            maximum=args.max,
            lease_ms=args.lease_ms or 0,
            worker=args.worker or "",
            owner=OWNER.get(),
            deadline=trio.current_time() + args.wait_ms / 1000,
            ahead_ms=args.ahead_ms,
        )

    def fail(self, error: OnyxqError) -> None:
        """Answer with an error."""
        self.answer = error
        self.over.end()

    def reply(self, granted: Sequence[Granted]) -> None:
        """Answer with tasks, and with their leases if the claim named none."""
        answer = GrantedTasks(claims=[list(one[:5]) for one in granted])
        if any(one.due_in_ms for one in granted):
            answer.due_in_ms = [one.due_in_ms for one in granted]
        if not self.lease_ms:
            answer.leases = [one.lease_ms for one in granted]
        self.answer = answer
        self.over.end()


Share = tuple[Claimer, int]
"""A claimer, and the number of tasks that a node should give it."""


class _Watched:
    """A queue with waiting claimers."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.heads: dict[str, Head | None] = {}
        """Best head of each node that has answered."""
        self.polled: set[str] = set()
        """Nodes that are asked again and again."""
        self.asking: dict[str, Callable[[], None]] = {}
        """Ends the open question to each node. It is called if the node's head becomes known before."""
        self.used_at = 0.0
        self.settled_at = 0.0
        """Time until which a claimer waits for the heads of nodes that have never answered."""


class Claiming:
    """See the module's first paragraph."""

    def __init__(self, node: Node, give_back: Callable[[Sequence[Granted]], None]) -> None:
        self._node = node
        self._give_back = give_back
        """Releases claims without a waiting client."""
        self._queues: dict[str, _Watched] = {}
        self._claimers: deque[Claimer] = deque()
        self._held: Counter[str] = Counter()
        """Number of claimers by owner; withdrawn ones may count for a moment."""
        self._wake = Wait()
        self._runs = False
        self._draining = False
        self._log_away_since: float | None = None
        self._answered = Signal()
        """Fired at each answer of a node."""
        self._asks: dict[str, int] = {}
        """Questions in flight per node."""
        self._leading_of: tuple[Any, int, list[str]] = (None, 0, [])
        self._unserved_of: tuple[Any, Any, list[int]] = (None, None, [])

    @procedure
    async def claim(self, args: ClaimTasks) -> GrantedTasks:
        """Return claimed tasks, as soon as there are some or once the wait is over; raises `OnyxqError`."""
        claimer = Claimer.of(args)
        self._submit(claimer)
        try:
            await claimer.over.wait()
            await stop_if_cancelled()  # nobody waits for what was granted at the last moment
        except CANCELLED:
            claimer.gone = True
            if isinstance(claimer.answer, GrantedTasks):
                self._give_back([Granted(*one) for one in claimer.answer.claims])
            raise
        if isinstance(claimer.answer, OnyxqError):
            raise claimer.answer
        assert claimer.answer is not None
        return claimer.answer

    def _submit(self, claimer: Claimer) -> None:
        if self._draining:
            claimer.fail(Unavailable("this peer is leaving; ask another"))
            return
        if not has_room(self._held, claimer.owner, CLAIMERS_MAX):
            claimer.fail(Unavailable("too many claims wait here"))
            return
        self._claimers.append(claimer)
        self._held[claimer.owner] += 1
        for queue in claimer.queues:
            self._watch(queue)
        self._wake.end()

    async def drain(self) -> None:
        """Take no further claims, and return once no answer is in flight (or soon after)."""
        self._draining = True
        for claimer in self._claimers:
            if not claimer.asking and not claimer.gone:
                claimer.gone = True
                claimer.fail(Unavailable("this peer is leaving; ask another"))
        until = trio.current_time() + ASK_TIMEOUT_S
        while any(self._asks.values()) and await self._answered.wait(until - trio.current_time()):
            pass

    def waiting(self, most: int) -> dict[str, Waiting]:
        """Return what up to ``most`` workers wait for here."""
        found: dict[str, list[Claimer]] = {}
        for one in self._claimers:
            if not one.gone and (one.worker in found or len(found) < most):
                found.setdefault(one.worker, []).append(one)
        out: dict[str, Waiting] = {}
        for worker, claims in found.items():
            queues = sorted(set[str]().union(*(one.queues for one in claims)))
            out[worker] = Waiting(len(claims), sum(one.maximum for one in claims), queues)
        return out

    @property
    def watched(self) -> int:
        """Number of queues that have, or recently had, waiting claimers here."""
        return len(self._queues)

    async def run(self) -> None:
        """Match claimers and nodes until cancelled."""
        self._runs = True
        self._node.procedures.start(self._follow_placement())
        for queue in self._queues:
            self._watch(queue)
        while True:
            await self._wake.wait(self._match())
            self._wake = Wait()

    async def _follow_placement(self) -> None:
        """Ask a node at once when it begins to lead."""
        while True:
            await self._node.changed(self._node.replica)
            self._wake.end()

    # --- watching queues

    def _watch(self, queue: str) -> None:
        watched = self._queues.get(queue)
        if watched is None:
            watched = self._queues[queue] = _Watched(queue)
        watched.used_at = trio.current_time()
        if not self._runs:
            return
        for node_id in self._leading_nodes():
            if node_id not in watched.polled:
                watched.settled_at = watched.used_at + FIRST_LOOK_S
                watched.polled.add(node_id)
                self._node.procedures.start(self._poll(watched, node_id))

    def _leading_nodes(self) -> list[str]:
        replica, leaders = self._node.replica, len(self._node.leaders)
        if self._leading_of[0] is not replica.partitions or self._leading_of[1] != leaders:
            found = {leader.id for p in replica.partitions if (leader := leader_node(replica, p)) is not None}
            if leaders:
                found.add(self._node.node_id)
            self._leading_of = (replica.partitions, leaders, sorted(found))
        return self._leading_of[2]

    async def _poll(self, watched: _Watched, node_id: str) -> None:
        quiet = False
        try:
            while self._still_wanted(watched, node_id):
                quiet = await self._ask_head(watched, node_id, IDLE_POLL_S if quiet else POLL_S)
        finally:
            watched.polled.discard(node_id)
            watched.asking.pop(node_id, None)
            watched.heads.pop(node_id, None)
            if not watched.polled and trio.current_time() - watched.used_at >= LINGER_S:
                self._queues.pop(watched.queue, None)  # names that claimers make up must not pile up
            self._wake.end()

    def _still_wanted(self, watched: _Watched, node_id: str) -> bool:
        if node_id not in self._leading_nodes():
            return False
        if trio.current_time() - watched.used_at < LINGER_S:
            return True
        return any(watched.queue in claimer.queues and not claimer.gone for claimer in self._claimers)

    async def _ask_head(self, watched: _Watched, node_id: str, poll_s: float) -> bool:
        """Ask once, for up to ``poll_s``; return whether the answer had no news."""
        known = watched.heads.get(node_id)
        better_than = list(known.key) if known is not None else None
        # Not known yet: the present state is wanted at once.
        timeout_s = poll_s if node_id in watched.heads else 0.0
        try:
            asking = Question(self._node.procedures, self._head_of(node_id, watched.queue, better_than, timeout_s))
            watched.asking[node_id] = asking.end
            head = await asking.answer()
        except OnyxqError:
            watched.heads.pop(node_id, None)  # what it has is not known
            self._wake.end()
            await self._ended_early(watched, node_id, 0.2)
            return False
        except Ended:
            return False
        watched.heads[node_id] = head
        if head is None:
            if timeout_s == 0.0:
                self._wake.end()
            return known is None
        self._wake.end()
        if known is not None and head.key >= known.key and not is_ahead(head):
            # Nobody here is in need of more: ask again when somebody is, or later.
            await self._ended_early(watched, node_id, POLL_S)
        return False

    async def _ended_early(self, watched: _Watched, node_id: str, seconds: float) -> None:
        """Wait until the node's head becomes known in another way, or for some time."""
        known = Wait()
        watched.asking[node_id] = known.end
        await known.wait(seconds)

    async def _head_of(self, node_id: str, queue: str, better_than: list[int] | None, timeout_s: float) -> Head | None:
        if node_id == self._node.node_id:
            known = (better_than[0], better_than[1]) if better_than is not None else None
            heads = self._node.granter.heads
            return await heads.wait_head(queue, known, timeout_s, wanted=partial(self._wanted, queue), ahead=True)
        args = {
            "queue": queue,
            "known": better_than,
            "timeout_ms": int(timeout_s * 1000),
            "wanted": self._wanted(queue),
            "ahead": True,
        }
        found = await self._node.call(node_id, "lead.head", args, timeout_s=timeout_s + 2.0)
        return unpack_head(found)

    def _wanted(self, queue: str) -> int:
        """Return how many tasks of a queue the waiting claimers could take."""
        waiting = (one.maximum for one in self._claimers if queue in one.queues and not (one.gone or one.asking))
        return min(sum(islice(waiting, WANTED_CLAIMERS)), WANTED_MAX)

    # --- matching

    def _match(self) -> float:
        """Ask nodes for the claimers that can be served; return the seconds until the next match."""
        now = trio.current_time()
        self._give_up_without_log(now)
        left: deque[Claimer] = deque()
        groups: dict[str, list[Share]] = {}
        next_look = now + 1.0 if self._claimers else math.inf
        while self._claimers:
            claimer = self._claimers.popleft()
            if claimer.gone:
                continue
            left.append(claimer)
            if claimer.asking:
                continue
            settled_at = self._settled_at(claimer)
            if now < settled_at:
                next_look = min(next_look, settled_at)
                continue
            found = self._shares(claimer)
            if found is None:
                continue  # the best node answers soon; claimers gather for the next question
            if found:
                claimer.asking, claimer.trouble = len(found), None
                for node_id, tasks in found.items():
                    groups.setdefault(node_id, []).append((claimer, tasks))
            elif now >= claimer.deadline and (self._sure(claimer) or now >= claimer.deadline + FIRST_ANSWERS_S):
                self._end(claimer)
            else:
                if claimer.ahead_again_at > now:
                    next_look = min(next_look, claimer.ahead_again_at)
                due = claimer.deadline if now < claimer.deadline else claimer.deadline + FIRST_ANSWERS_S
                next_look = min(next_look, due)
        self._claimers, self._held = left, Counter(claimer.owner for claimer in left)
        for queue in dict.fromkeys(queue for claimer in left for queue in claimer.queues):
            self._watch(queue)
        for node_id, group in groups.items():
            self._asks[node_id] = self._asks.get(node_id, 0) + 1
            self._node.procedures.start(self._ask_node(group, node_id))
        return max(next_look - now, 0.0)

    def _give_up_without_log(self, now: float) -> None:
        """Fail waiting claims while the log is away: another peer may reach it."""
        if self._without_log() is None:
            self._log_away_since = None
            return
        if self._log_away_since is None:
            self._log_away_since = now
        if now - self._log_away_since >= LOG_PATIENCE_S:
            for claimer in self._claimers:
                if not claimer.asking and not claimer.gone:
                    self._end(claimer)

    def _end(self, claimer: Claimer) -> None:
        claimer.gone = True
        trouble = self._without_log() or claimer.trouble or self._unserved() or self._unheard(claimer)
        if trouble is not None:
            claimer.fail(trouble)
        else:
            claimer.reply([])

    def _without_log(self) -> LogUnavailable | None:
        """Return the error if this node does not reach the log now: it may not know who leads."""
        try:
            self._node.outbox_now()
        except LogUnavailable as error:
            return error
        return None

    def _unserved(self) -> Unavailable | None:
        """Return the error if some partitions have no leader with a majority: they may hold tasks."""
        replica = self._node.replica
        if self._unserved_of[0] is not replica.partitions or self._unserved_of[1] is not replica.nodes:
            self._unserved_of = (replica.partitions, replica.nodes, unserved(replica, live_nodes(replica)))
        missing = self._unserved_of[2]
        if not missing:
            return None
        return Unavailable(
            f"{len(missing)} of {len(replica.partitions)} partitions (the first: {missing[0]}) have no leader "
            f"with a majority of their nodes, so there may be tasks that cannot be claimed now"
        )

    def _unheard(self, claimer: Claimer) -> Unavailable | None:
        """Return the error if a leader does not answer this node: it may have tasks."""
        silent = [
            node_id
            for node_id in self._leading_nodes()
            if any(node_id not in self._queues[queue].heads for queue in claimer.queues)
        ]
        if not silent:
            return None
        return Unavailable(f"node {silent[0]}, which leads partitions, did not answer; there may be tasks there")

    def _settled_at(self, claimer: Claimer) -> float:
        """Return the time from which its queues are known well enough to choose the best node."""
        settled_at = max((self._queues[queue].settled_at for queue in claimer.queues), default=0.0)
        if settled_at > trio.current_time() and self._all_known(claimer):
            return 0.0
        return settled_at

    def _sure(self, claimer: Claimer) -> bool:
        """Return whether all partitions have answered."""
        return self._all_known(claimer) and self._unserved() is None

    def _all_known(self, claimer: Claimer) -> bool:
        nodes = self._leading_nodes()
        return all(node_id in self._queues[queue].heads for queue in claimer.queues for node_id in nodes)

    def _shares(self, claimer: Claimer) -> dict[str, int] | None:
        """Return how many tasks to claim at each node; empty without tasks, None if the best node is busy."""
        ahead = claimer.ahead_ms > 0 and trio.current_time() >= claimer.ahead_again_at
        offers = [
            Offer(node_id, queue, head)
            for queue in claimer.queues
            for node_id, head in (self._queues[queue].heads.items() if queue in self._queues else ())
            if head is not None and (ahead or not is_ahead(head))
        ]
        if not offers:
            return {}
        best = min(offers, key=lambda offer: offer.head.key)
        if self._asks.get(best.node_id, 0) >= ASKS_MAX:
            return None
        claimer.asks_ahead = is_ahead(best.head)
        asked = [one for one in offers if one is best or self._asks.get(one.node_id, 0) < ASKS_MAX]
        taken, found = shares(asked, best, claimer.maximum)
        # What is asked for now is no longer offered to the next claimer.
        for offer, left in taken:
            self._queues[offer.queue].heads[offer.node_id] = left
        return found

    async def _ask_node(self, group: list[Share], node_id: str) -> None:
        requests: list[Asked] = [
            (list(one.queues), tasks, one.lease_ms or None, one.worker, one.ahead_ms if one.asks_ahead else 0)
            for one, tasks in group
        ]
        queues = sorted({queue for one, _ in group for queue in one.queues})
        try:
            answers, heads = await self._claim_at(requests, node_id, sum(one.maximum for one, _ in group))
        except OnyxqError as error:
            answers, heads = [error] * len(group), dict.fromkeys(queues)
        self._asks[node_id] -= 1
        for queue in queues:
            watched = self._queues.get(queue)
            if watched is not None and node_id in watched.heads:
                watched.heads[node_id] = heads.get(queue)
                if node_id in watched.asking:
                    watched.asking[node_id]()
        for (claimer, _), answer in zip(group, answers, strict=True):
            self._take_answer(claimer, answer)
        self._answered.fire()
        if any(isinstance(answer, OnyxqError) and not isinstance(answer, LogUnavailable) for answer in answers):
            await pause(0.1)
        self._wake.end()

    def _take_answer(self, claimer: Claimer, answer: list[Granted] | OnyxqError) -> None:
        """Record a node's answer for a claimer, which is answered once all nodes that were asked have answered."""
        claimer.asking -= 1
        if isinstance(answer, OnyxqError):
            claimer.trouble = answer
        else:
            claimer.granted += answer
        if claimer.asking and claimer.granted and not claimer.gone:
            self._node.procedures.start(self._deliver_soon(claimer))
        elif claimer.granted and not claimer.asking:
            self._deliver(claimer)
        elif isinstance(answer, LogUnavailable) and not claimer.gone and not claimer.asking:
            self._end(claimer)
        elif not answer and claimer.asks_ahead:
            claimer.ahead_again_at = trio.current_time() + AHEAD_AGAIN_S

    async def _deliver_soon(self, claimer: Claimer) -> None:
        """Wait for the other nodes for up to `GATHER_S`."""
        await pause(GATHER_S)
        if claimer.granted:
            self._deliver(claimer)

    def _deliver(self, claimer: Claimer) -> None:
        granted, claimer.granted = claimer.granted, []
        if claimer.gone:
            self._give_back(granted)
            return
        claimer.gone = True
        fit = _fitting(granted)
        self._give_back(granted[fit:])
        claimer.reply(granted[:fit])

    async def _claim_at(
        self, requests: list[Asked], node_id: str, wanted: int
    ) -> tuple[list[list[Granted] | OnyxqError], dict[str, Head | None]]:
        if node_id == self._node.node_id:
            return await claim_here(self._node, requests, wanted)
        args = {"requests": requests, "wanted": wanted}
        answer = await self._node.call(node_id, "lead.claim", args, timeout_s=ASK_TIMEOUT_S)
        heads = {queue: unpack_head(head) for queue, head in answer["heads"].items()}
        return [unpack_answer(one) for one in answer["claims"]], heads


def _fitting(granted: Sequence[Granted]) -> int:
    """Return how many of the grants of several nodes fit in one answer; at least one does."""
    size = 0
    for number, one in enumerate(granted):
        size += len(one.body)
        if size > ANSWER_BYTES_MAX and number:
            return number
    return len(granted)


def pack_answer(answer: list[Granted] | OnyxqError) -> Any:
    """Return the outcome of one request as it is sent."""
    if isinstance(answer, OnyxqError):
        return answer.to_map()
    return [list(one if one.due_in_ms else one[:6]) for one in answer]


def unpack_answer(packed: Any) -> list[Granted] | OnyxqError:
    """Return what `pack_answer` packed."""
    return from_map(packed) if isinstance(packed, dict) else [Granted(*one) for one in packed]
