"""The planted bugs, each a documented value: one line of the tree, and what takes its place."""

from __future__ import annotations

from attrs import frozen


@frozen
class Planted:
    """One deliberate fault."""

    name: str
    file: str
    before: str
    """The line, without its indentation; it stands in the file exactly once."""
    after: str
    breaks: str
    """What can go wrong because of it."""
    workload: str
    """Which is expected to find it."""
    runs: int = 100
    """Seeds within which it must be found, from 1 on."""
    quick: int = 0
    """Seeds, from 1 on, within which every full run of the tests finds it; 0: they do not try."""


PLANTED: tuple[Planted, ...] = (
    # --- the log and the ring
    Planted(
        "outbox numbers ignored",
        "onyxq/step.py",
        "if content.number == last + 1:",
        "if content.number >= 0:",
        "a record that was appended twice counts twice",
        "explorer",
    ),
    Planted(
        "outbox gap accepted",
        "onyxq/step.py",
        "if content.number == last + 1:",
        "if content.number > last:",
        "a record that is late finds its number used up",
        "explorer",
    ),
    Planted(
        "queued joiner watches nobody",
        "onyxq/ring.py",
        "found = {*stitching(ring), *ring.queue[max(place - 1, 0) : place]}",
        "found = set()",
        "where everybody else died nobody reports it",
        "explorer",
    ),
    Planted(
        "watch not moved on leave",
        "onyxq/ring.py",
        "return rest.remove(watcher) if watcher == successor else rest.set(watcher, successor)",
        "return rest.remove(watcher)",
        "the successor of a peer that left is watched by nobody",
        "explorer",
        quick=6,
    ),
    Planted(
        "joiner of a dead helper forgotten",
        "onyxq/ring.py",
        "queue=(held, *queue) if held else queue,",
        "queue=queue,",
        "a peer whose helper died in the middle of its join never joins",
        "explorer",
    ),
    Planted(
        "expiry by local clock",
        "onyxq/step.py",
        "passed_ms = max(0, rise_ms if rise_ms <= said_ms + CLOCK_TOLERANCE_MS else said_ms)",
        "passed_ms = max(0, said_ms)",
        "a peer whose clock jumps ages everybody's claims",
        "clocks",
    ),
    Planted(
        "obligation lost after a trim",
        "onyxq/replica.py",
        "return taken.peer if taken.peer in replica.ring.members else first_peer(replica)",
        "return taken.peer",
        "a collector dies before or behind its trim, and nobody owes the rest",
        "explorer",
    ),
    Planted(
        "a joiner that was put out waits on",
        "onyxq/peer/peer.py",
        "known = known or self._passed or contains(replica.ring, self.id)",
        "known = known or contains(replica.ring, self.id)",
        "a joiner that goes on from an origin in which it is no more waits for its join for ever",
        "overtaken",
        quick=1,
    ),
    Planted(
        "landed records awaited behind an origin",
        "onyxq/peer/outbox.py",
        "if behind <= number or self._landed.get(behind, position + 1) <= position:",
        "if behind <= number:",
        "a joiner that was put out long ago does not see that its request lies behind it",
        "overtaken",
    ),
    # --- what is enabled
    Planted(
        "a version enabled that not everybody knows",
        "log_entries/raise_minimum.py",
        "if any(peer.versions.get(args.name, 0) < args.version for peer in replica.peers.values()):",
        "if not replica.peers:",
        "peers that are older than what is enabled stop in the middle of their work",
        "explorer",
    ),
    Planted(
        "an entry counts before it is enabled",
        "onyxq/step.py",
        "if not creating and raw.version > replica.enabled.get(raw.name, 0):",
        "if not creating and raw.name not in entries:",
        "peers that know an entry and peers that do not hold different replicas",
        "explorer",
    ),
    # --- who leads
    Planted(
        "no epoch check in grant",
        "onyxq/claims.py",
        "if found.epoch != epoch:",
        "if found.epoch < epoch:",
        "what a leader granted before it was deposed holds when it leads again",
        "explorer",
    ),
    Planted(
        "epoch not stored before answering",
        "onyxq/partition/cohort.py",
        "await host.store.write(Batch(epochs=((partition, epoch),)))",
        "await host.store.write(Batch())",
        "a promise is forgotten with the process that gave it",
        "promises",
        quick=6,
    ),
    Planted(
        "follower accepts a write below its epoch",
        "onyxq/partition/cohort.py",
        'reached = self._host.epochs.get(_number(partition, "partition", PARTITIONS_MAX), 0)',
        "reached = epoch",
        "a deposed leader still gathers majorities",
        "misled",
        quick=6,
    ),
    Planted(
        "quorum one too small",
        "onyxq/replica.py",
        "return not nodes or 2 * sum(node in have for node in nodes) > len(nodes)",
        "return not nodes or 2 * sum(node in have for node in nodes) + 1 >= len(nodes)",
        "what was acknowledged is on one node of three",
        "misled",
    ),
    Planted(
        "leader acks before its own store has it",
        "onyxq/partition/replication.py",
        "return self._leader in self.acks and all(majority(cohort, self.acks) for cohort in self._cohorts)",
        "return all(majority(cohort, self.acks) for cohort in self._cohorts)",
        "the leader does not know of a completion and grants the task again",
        "own_disk",
        quick=6,
    ),
    Planted(
        "takeover without the majority read",
        "onyxq/partition/leader.py",
        "while not majority(self.placed.members, self._merged):",
        "while not majority(self.placed.members, self._reached):",
        "a new leader serves without what it missed",
        "behind",
        quick=6,
    ),
    Planted(
        "settle without the target's majority",
        "onyxq/partition/leader.py",
        "elif majority(placed.target, self.current):",
        "elif self.current:",
        "members change to nodes that do not have the tasks",
        "moved",
        quick=6,
    ),
    # --- claims
    Planted(
        "completion taken after the re-grant is in the outbox",
        "onyxq/partition/granter.py",
        "return self._blocked.get(stretch_of(run.first), 0) & mask_of(*run)",
        "return 0",
        "two workers' completions of one task are both taken",
        "late",
        quick=6,
    ),
    Planted(
        "a completed task granted again after takeover",
        "onyxq/partition/granter.py",
        "state = (taken | self._host.store.finished_bits(stretch), self._host.store.moved(stretch))",
        "state = (taken, self._host.store.moved(stretch))",
        "what is ready is believed without asking what is finished",
        "leases",
    ),
    Planted(
        "expire_claims without the deadline check",
        "log_entries/expire_claims.py",
        "outside, inside = split(pieces, bits, lambda piece: piece[2] == token "
        "and lapsed(piece[4], stamp.log_time_ms))",
        "outside, inside = split(pieces, bits, lambda piece: piece[2] == token)",
        "a claim that was just renewed expires",
        "leases",
    ),
    Planted(
        "lease renewed for a stale token",
        "log_entries/renew_claims.py",
        "outside, inside = split(pieces, bits, lambda piece: piece[2] == token)",
        "outside, inside = split(pieces, bits, lambda piece: piece[2] >= token)",
        "a worker that lost its claim extends another's",
        "explorer",
    ),
    Planted(
        "retry not counted",
        "onyxq/partition/operations.py",
        "attempts = piece.attempts + 1",
        "attempts = piece.attempts",
        "a task that always fails is tried for ever",
        "retries",
    ),
    Planted(
        "long poll misses a wake-up",
        "onyxq/partition/granter.py",
        "self.changed.set()",
        "self.changed.is_set()",
        "a claimer that waits is not told of a task until it asks again",
        "prompt",
    ),
    Planted(
        "a valid claim called stale by a deposed leader",
        "onyxq/partition/judging.py",
        "unsure.add(partition)",
        "pass",
        "a worker is told to stop although its claim is valid",
        "unheard",
    ),
    # --- facts and stores
    Planted(
        "enqueue retry makes a second task",
        "onyxq/client/enqueuing.py",
        "address, runs = None, [run for run, _ in failed]",
        "address, runs = None, [[self._run(RUN_TASKS_MAX, NOW).first, run[1]] for run, _ in failed]",
        "an enqueue whose answer was lost is done twice",
        "leases",
    ),
    Planted(
        "anti-entropy ignores updates",
        "onyxq/partition/sync.py",
        "await self._push(sorted(key for key, _ in mine - theirs))",
        'await self._push(sorted(key for key, _ in mine - theirs if key[2:3] != b"U"))',
        "a copy that missed updates never gets them",
        "disks",
    ),
    Planted(
        "digest not updated with the row",
        "onyxq/store/indexing.py",
        "leaf[1] += row_hash(key, value)",
        "leaf[1] += 0",
        "copies that hold different rows look alike",
        "standard",
        runs=250,
    ),
    Planted(
        "history position written before the rows",
        "onyxq/peer/history.py",
        "rows, self._rows = self._rows, []",
        "rows, self._rows = [], self._rows",
        "a crash between the two leaves a hole in the history",
        "attempts",
        quick=6,
    ),
    Planted(
        "renewed claims recorded as expired",
        "onyxq/peer/history.py",
        "ended = [(run, held.end(run, expiry.token, lapsed_only=True)) for run in expiry.runs]",
        "ended = [(run, held.end(run, expiry.token)) for run in expiry.runs]",
        "attempts are counted for claims that go on",
        "leases",
    ),
)
"""Every planted bug. One that a task expires while a transaction holds it waits for transactions."""
