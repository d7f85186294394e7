"""The history of one task, in order: the log entries that named it, and what the store knows.

Pure. The log has every grant, renewal, release and expiry with its verdict. Where the log was trimmed, the store's
history rows remain: grants, failures, expiries and releases, without renewals and without refused entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from attrs import frozen

from log_entries.commit_batch import committed_by
from onyxq.core.diff import plain
from onyxq.core.entry import APPLIED
from onyxq.core.facts import GRANTED
from onyxq.core.ids import counter_of, ms_of, partition_of
from onyxq.core.replica import HELD_MS, ClaimPiece, Replica, claim_of
from onyxq.core.step import Outcome, step
from onyxq.history import words
from onyxq.history.dump import Dump
from onyxq.history.replay import traced
from onyxq.system.extensions import installed

LOG, HISTORY, STORE, ID = "log", "history", "store", "id"
"""Sources of an event."""
SETTLE, RENEW = "settle_transactions", "renew_claims"
NOT_HELD = "the token no longer held it"
_HISTORY_ENTRIES = ("grant_claims", "release_claims", "expire_claims", "release_claims", "", "reopen_tasks")
_GRANTS = ("grant_claims", "grant_limited_claims")
_ENDS = ("release_claims", "expire_claims")


@frozen
class Told:
    """One event in the history of the task."""

    at_ms: int
    position: int | None
    """Position of the log record, or None if there was none."""
    index: int
    source: str
    entry: str
    """Name of the entry; empty if the event is not an entry."""
    verdict: str
    peer: str
    """Writer of the record; empty if it is not known."""
    token: int | None
    worker: str
    words: str
    update: int | None = None
    """Sequence number of the update under its token; None if the event is not an update."""


@frozen
class HistoryLine:
    """One line of the history of the task, about one event or about several updates."""

    first: Told
    last: Told
    words: str


def from_log(dump: Dump, task_id: bytes, until: int) -> list[Told]:
    """Return every entry up to position ``until`` that named the task.

    Raises `OlderThanCluster` for an entry that is not installed here.
    """
    marks = [task_id[:16], task_id.hex().encode()]
    transactions: set[str] = set()
    out: list[Told] = []
    replica = dump.start
    for record in dump.records:
        if record.position > until:
            break
        if record.position <= replica.position:
            continue
        if not any(mark in record.data for mark in marks):
            replica = step(replica, record, installed()).replica
            continue
        done, seen = traced(replica, record)
        for outcome, after in seen:
            if names(outcome.args, task_id) or _settles(outcome, transactions, partition_of(task_id)):
                for committed in committed_by(outcome.args) if outcome.verdict == APPLIED else ():
                    if names(committed.claims, task_id):
                        transactions.add(committed.name)
                        marks.append(committed.name.encode(errors="replace"))
                verdict = _verdict(outcome, replica, after, task_id)
                out.append(_from_entry(outcome, verdict, task_id, done.peer, record.position, record.ctime_ms))
            replica = after
        replica = done.replica
    return out


def from_store(task_id: bytes, known: Mapping[str, Any]) -> list[Told]:
    """Return the events that the store knows; ``known`` is the answer of the method ``task_history``."""
    task = known["task"]
    out = [
        _plain_told(
            ms_of(task_id),
            ID,
            f"made for queue {task['queue']} with priority {task['priority']}, in partition "
            f"{partition_of(task_id)}, due from this time on{_unique(task)}",
        )
    ]
    out += [_from_history(row) for row in known["history"]]
    out += _earlier_failures(known)
    out += _voided(known)
    for update in known["updates"]:
        said = f"worker wrote update {update['seq']} under token {update['token']}"
        out.append(_plain_told(update["at_ms"], STORE, said, token=update["token"], update=update["seq"]))
    done = known["completion"]
    if done is not None:
        under = f" under token {done['token']}" if done["token"] is not None else ""
        error = f": {words.brief(done['error'])}" if done.get("error") else ""
        out.append(_plain_told(done["at_ms"], STORE, f"{done['outcome']}{under}{error}", token=done["token"]))
    return out


def _earlier_failures(known: Mapping[str, Any]) -> list[Told]:
    """Return how the task failed for good before it was requeued; `known["completion"]` is only the last end."""
    last = known["completion"]["token"] if known["completion"] is not None else None
    return [
        _plain_told(
            one["end_ms"], STORE, f"failed under token {one['token']}: {words.brief(one['error'])}", token=one["token"]
        )
        for one in known["task"]["claims"]
        if one["outcome"] == "failed" and one["retry_ms"] is None and one["error"] and one["token"] != last
    ]


def _unique(task: Mapping[str, Any]) -> str:
    """Return what the task's unique key means, in words; nothing without a key."""
    if task.get("unique_key") is None:
        return ""
    until = {"started": "an attempt begins", "finished": "the task ends"}.get(task["unique_until"], "it is purged")
    period = f", once per {words.duration(task['unique_period_ms'])}" if task.get("unique_period_ms") else ""
    return f"; holds the unique key {words.brief(task['unique_key'])}{period} until {until}"


def _voided(known: Mapping[str, Any]) -> list[Told]:
    """Return the end of a claim that only a recovery of the log ended, if there is one.

    The time of the recovery is not known. The event gets the time of the grant, and sorts right after it.
    """
    below = known["void_below"]
    last = max(known["history"], key=lambda row: (row["position"], row["index"]), default=None)
    if last is None or last["event"] != GRANTED or last["token"] >= below:
        return []
    if known["completion"] is not None or known["task"]["state"] == "claimed":
        return []
    said = f"the claim under token {last['token']} became void: a new log began at position {below}"
    return [_plain_told(last["at_ms"], STORE, said, token=last["token"], position=below)]


def merged(found: Iterable[Told]) -> list[Told]:
    """Return the events in order of time, without the history rows of log entries that are there too.

    The clocks of the log and of leaders differ a little. The creation of the task always comes first, and what the
    store knows of a claim between the grant and the end of the claim.
    """
    told = list(found)
    entries = {(one.position, one.index) for one in told if one.source == LOG}
    kept = {
        (one.at_ms, one.position, one.index, one.words): one
        for one in told
        if one.source != HISTORY or (one.position, one.index) not in entries
    }
    entered = [one for one in kept.values() if one.position is not None and one.token is not None]
    began = {one.token: one.at_ms for one in entered if one.entry in _GRANTS}
    ended = {one.token: one.at_ms for one in entered if one.entry in _ENDS and one.verdict == APPLIED}

    def order(one: Told) -> tuple[int, int, int, int]:
        if one.source == ID:
            return -1, -1, 0, 0
        if one.position is not None or one.token is None:
            return one.at_ms, -1 if one.position is None else one.position, 0, one.index
        at_ms = max(one.at_ms, began.get(one.token, one.at_ms))
        return min(at_ms, ended.get(one.token, at_ms)), one.token, 1 + (one.update is None), one.update or 0

    return sorted(kept.values(), key=order)


def lines(events: Iterable[Told]) -> list[HistoryLine]:
    """Return a line for each event, and one line for neighbouring updates of one claim."""
    out = []
    for (is_update, token), group in groupby(events, key=lambda one: (one.update is not None, one.token)):
        found = list(group)
        if is_update and len(found) > 1:
            numbers = [one.update for one in found if one.update is not None]
            said = f"worker wrote updates {min(numbers)} to {max(numbers)} under token {token}"
            out.append(HistoryLine(found[0], found[-1], said))
        else:
            out += [HistoryLine(one, one, one.words) for one in found]
    return out


def names(args: Any, task_id: bytes) -> bool:
    """Return whether an entry's arguments name the task, by its id or by a run that covers it."""
    if isinstance(args, bytes):
        return args == task_id
    if isinstance(args, str):
        return args == task_id.hex()
    if isinstance(args, (list, tuple)):
        if _is_run(args):
            return _covers(args[0], args[1], task_id)
        return any(names(one, task_id) for one in args)
    if isinstance(args, Mapping):
        return any(names(one, task_id) for one in (*args, *args.values()))
    fields = getattr(type(args), "__attrs_attrs__", ())
    return any(names(getattr(args, field.name), task_id) for field in fields)


def narrowed(args: Any, task_id: bytes) -> Any:
    """Return an entry's arguments as a plain tree that has only the parts that name the task."""
    if isinstance(args, (list, tuple)):
        if _is_run(args):
            return {"first": task_id.hex(), "count": 1}
        if hasattr(args, "_asdict"):
            return {name: narrowed(value, task_id) for name, value in args._asdict().items()}
        kept = [one for one in args if names(one, task_id)]
        return [narrowed(one, task_id) for one in kept or args]
    fields = getattr(type(args), "__attrs_attrs__", ())
    if fields:
        return {field.name: narrowed(getattr(args, field.name), task_id) for field in fields}
    return plain(args)


def _is_run(value: Sequence[Any]) -> bool:
    return len(value) == 2 and isinstance(value[0], bytes) and len(value[0]) == 20 and type(value[1]) is int


def _covers(first: bytes, count: int, task_id: bytes) -> bool:
    return first[:16] == task_id[:16] and 0 <= counter_of(task_id) - counter_of(first) < count


def _settles(outcome: Outcome, transactions: Collection[str], partition: int) -> bool:
    """Return whether an entry settles one of the transactions in a partition."""
    mine = outcome.name == SETTLE and getattr(outcome.args, "partition", None) == partition
    return mine and any(name in transactions for name in outcome.args.names)


def _verdict(outcome: Outcome, before: Replica, after: Replica, task_id: bytes) -> str:
    """Return the verdict for this task: an entry may apply to other tasks only."""
    if outcome.verdict != APPLIED or outcome.name not in (RENEW, *_ENDS):
        return outcome.verdict
    held = claim_of(before, task_id)
    if outcome.name == RENEW:  # A repeat in the same record leaves the deadline as it is.
        applied = held is not None and _renews(outcome.args, held, task_id)
    else:
        applied = held is not None and claim_of(after, task_id) is None
    return APPLIED if applied else NOT_HELD


def _renews(args: Any, held: ClaimPiece, task_id: bytes) -> bool:
    """Return whether a renewal names the task under the token of its claim."""
    _, _, token, _, deadline_ms = held
    return deadline_ms != HELD_MS and any(one.token == token and names(one.runs, task_id) for one in args.renewals)


def _first_map(args: Any) -> dict[str, Any]:
    """Return the first map in any list of ``args``, or an empty map."""
    lists = [part for part in args.values() if isinstance(part, list)] if isinstance(args, dict) else []
    return next((part[0] for part in lists if part and isinstance(part[0], dict)), {})


def _from_entry(outcome: Outcome, verdict: str, task_id: bytes, peer: str, position: int, at_ms: int) -> Told:
    args = narrowed(outcome.args, task_id)
    said = _first_map(args)
    if "claims" in said:  # A transaction of a batch.
        said = _first_map(said)
    grants = outcome.name in _GRANTS
    token = position if grants else said.get("token")
    return Told(
        at_ms=at_ms,
        position=position,
        index=outcome.index,
        source=LOG,
        entry=outcome.name,
        verdict=verdict,
        peer=peer,
        token=token if verdict == APPLIED or not grants else None,
        worker=str(said.get("worker", "")),
        words=words.sentence(outcome.name, args, verdict).replace(f"task {task_id.hex()}", "it"),
    )


def _from_history(row: Mapping[str, Any]) -> Told:
    said = {name: row[name] for name in ("token", "worker", "retry_ms", "attempts", "note")}
    return Told(
        at_ms=row["at_ms"],
        position=row["position"],
        index=row["index"],
        source=HISTORY,
        entry=_HISTORY_ENTRIES[row["event"]] if row["event"] < len(_HISTORY_ENTRIES) else "",
        verdict=APPLIED,
        peer="",
        token=row["token"],
        worker=row["worker"],
        words=words.history(row["event"], **said),
    )


def _plain_told(
    at_ms: int,
    source: str,
    said: str,
    *,
    token: int | None = None,
    position: int | None = None,
    update: int | None = None,
) -> Told:
    return Told(at_ms, position, 0, source, "", "", "", token, "", said, update)
