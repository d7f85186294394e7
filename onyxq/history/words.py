"""Log entries as English sentences, for ``log tail``, ``task explain`` and subscriptions.

Pure. Sentences are made from an entry's arguments as plain maps (`onyxq.core.diff.plain`), so an entry can be
shown where its module is not installed. An entry without its own sentence gets one made of its field names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from onyxq.core.diff import plain
from onyxq.core.entry import APPLIED
from onyxq.core.facts import EXPIRED, GRANTED, RELEASED, REOPENED, RETRIED
from onyxq.core.queue_settings import SETTINGS
from onyxq.core.texts import attempt_of, visible

Args: TypeAlias = Mapping[str, Any]

SET_REPLICA = "set_replica"
"""Name of the synthetic entry that marks a replica read from the origin.

No record holds it.
"""
COMPLETED_EVENT = 4
PARTS_MAX = 4
"""Largest number of grants, renewals or releases of one entry that are listed individually."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def sentence(name: str, args: Any, verdict: str = APPLIED) -> str:
    """Return a sentence that describes an entry, and its verdict unless it was applied.

    ``args``: the entry's typed arguments, a map of them, or a raw list if they do not fit the types.
    """
    shown = plain(args)
    said = ""
    if isinstance(shown, dict):
        try:
            form = _SENTENCES.get(name) or partial(generic, name)
            said = form.format_map(shown) if isinstance(form, str) else form(shown)
        except (KeyError, TypeError, ValueError):
            said = generic(name, shown)  # another version's arguments
    else:
        said = f"{title(name)} {brief(shown)}"
    return visible(said if verdict == APPLIED else f"{said}: nothing changed, {verdict}")


def generic(name: str, args: Args) -> str:
    """Return a description made of field names, for any entry: ``grant lock: name db, holder w1``."""
    parts = [f"{title(field)} {brief(value)}" for field, value in args.items()]
    return f"{title(name)}: {', '.join(parts)}" if parts else title(name)


def title(name: str) -> str:
    """Return a name with spaces for underscores and dots."""
    return name.replace("_", " ").replace(".", " ")


def brief(value: Any, limit: int = 80) -> str:
    """Return a value as text of at most ``limit`` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def duration(ms: int) -> str:
    """Return a duration in its largest fitting unit: ``30 s``, ``1.5 s``, ``250 ms``, ``2 h``."""
    for unit_ms, unit in _UNITS:
        if ms >= unit_ms:
            return f"{ms / unit_ms:.3g} {unit}"
    return f"{ms} ms"


def moment(ms: int) -> str:
    """Return a wall-clock time in ms as ISO text, UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")[:23] + "Z"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def attempt(task: Args) -> str:
    """Return the number of a task's last attempt, such as ``2 of 6``; ``0 of 6`` before the first one."""
    return attempt_of(task["claims"][-1]["attempt"] if task["claims"] else 0, task["attempts_max"])


def worker_state(worker: Args) -> str:
    """Return ``busy`` for a worker that has tasks, ``idle`` for one that only waits for some."""
    return "busy" if worker["claimed"] else "idle"


def ending(claim: Args) -> str:
    """Return how an attempt ended, for people."""
    outcome = claim["outcome"]
    if outcome == "failed":
        return "given up" if claim["given_up"] else "failed" if claim["retry_ms"] is None else "failed, retried"
    if outcome == "released":
        return "released" if claim["retry_ms"] is None else "snoozed"
    return {None: "running", "expired": "lease expired"}.get(outcome, str(outcome))


def summary(task: Args) -> str:
    """Return a sentence about a task: its state, its last attempt and the error."""
    state, is_open = task["state"], task["state"] in ("scheduled", "waiting", "ready")
    if not task["claims"]:
        due = f"is {state}, due at {moment(task['at_ms'])}, without an attempt so far"
        return f"The task {due if is_open else f'was {state} before any attempt'}."
    last = task["claims"][-1]
    which = f"attempt {attempt(task)} by worker {last['worker'] or '(unnamed)'}"
    reason = task["error"] or last["error"]  # a requeue clears the error of the task
    error = f": {brief(reason)}" if reason else ""
    if state == "claimed":
        since = "" if last["start_ms"] is None else f" since {moment(last['start_ms'])}"
        said = f"The task is running: {which}{since}{error}"
    elif is_open:
        said = f"The task is {state}, due at {moment(task['at_ms'])}, after {which} ({ending(last)}){error}"
    else:
        took = f", {duration(task['duration_ms'])} after its first start" if task["duration_ms"] is not None else ""
        how = "was given up" if last["given_up"] else "failed for good" if state == "failed" else f"was {state}"
        said = f"The task {how} in {which}{took}{error}"
    return visible(said) + "."


def callback(told: Args) -> str:
    """Return the target of a task's callback and the state of its delivery."""
    state: str = told["state"]
    said = {
        "waiting": "waits for the end of the task",
        "claimed": "is being made",
        "failed": "given up",
        "cancelled": "withdrawn",
        "purged": "made or given up, and no longer kept",
    }.get(state, state)
    if told["delivered_ms"] is not None:
        said = f"delivered at {moment(told['delivered_ms'])}"
    elif told["at_ms"] is not None:
        said = f"due at {moment(told['at_ms'])}"
    if told["attempts"]:
        failed = "attempt failed" if told["attempts"] == 1 else "attempts failed"
        said += f"; {told['attempts']} {failed}, the last one: {brief(told['error'] or 'no error is known', 200)}"
    return visible(f"{told['method']} {brief(told['uri'], 200)}: {said}")


def tasks(runs: Sequence[Args]) -> str:
    """Return a phrase for runs of ids: ``task 01…``, ``12 tasks from 01… on``, ``40 tasks in 3 runs from 01… on``."""
    count = sum(run["count"] for run in runs)
    if not runs:
        return "no tasks"
    if count == 1:
        return f"task {runs[0]['first']}"
    pieces = f" in {len(runs)} runs" if len(runs) > 1 else ""
    return f"{count} tasks{pieces} from {runs[0]['first']} on"


def listed(parts: Sequence[str]) -> str:
    """Return the first `PARTS_MAX` parts as text, with the number of the others."""
    more = f"; and {len(parts) - PARTS_MAX} more" if len(parts) > PARTS_MAX else ""
    return "; ".join(parts[:PARTS_MAX]) + more


def history(event: int, *, token: int, worker: str, retry_ms: int, attempts: int, note: str) -> str:
    """Return a sentence for one of the store's history rows about a task."""
    if event == GRANTED:
        return visible(f"granted to worker {worker or '(unnamed)'} under token {token}")
    return visible(_ended(event, {"token": token, "retry_ms": retry_ms, "attempts": attempts, "note": note}))


# --- one sentence for each entry ---------------------------------------------------


def _prepare_join(args: Args) -> str:
    zone = f" in zone {args['zone']}" if args["zone"] else ""
    return f"peer {args['peer']} of node {args['node']}{zone} at {args['address']} asks to join the ring"


def _leave(args: Args) -> str:
    return f"peer {args['peer']} is out of the ring ({args['reason'] or 'no reason given'})"


def _drain(args: Args) -> str:
    return f"node {args['node']} is drained" + (", all its copies move for good" if args["permanent"] else "")


def _force(args: Args) -> str:
    return (
        f"partition {args['partition']} continues with the nodes left, as {args['by'] or 'an operator'} asked; "
        "data that only the lost nodes have is lost"
    )


def _grant(args: Args) -> str:
    return f"{_leader(args)} grants {_grants(args)}"


def _grant_limited(args: Args) -> str:
    return f"{_leader(args)} grants within the limits of queue {args['queue']} {_grants(args)}"


def _grants(args: Args) -> str:
    parts = [
        f"{tasks(one['runs'])} to worker {one['worker'] or '(unnamed)'} for {duration(one['lease_ms'])}"
        for one in args["grants"]
    ]
    return listed(parts)


def _renew(args: Args) -> str:
    parts = [
        f"the claim on {tasks(one['runs'])} under token {one['token']} for {duration(one['lease_ms'])}"
        for one in args["renewals"]
    ]
    return f"{_leader(args)} renews {listed(parts)}"


def _release(args: Args) -> str:
    parts = [f"{tasks(one['runs'])} {_ended(one['event'], one)}" for one in args["releases"]]
    return f"{_leader(args)}: {listed(parts)}"


def _expire(args: Args) -> str:
    parts = [f"{tasks(one['runs'])} {_ended(EXPIRED, one)}" for one in args["expirations"]]
    return f"{_leader(args)}: {listed(parts)}"


def _ended(event: int, said: Args) -> str:
    under = f"under token {said['token']}"
    if event == COMPLETED_EVENT:
        return f"ended {under}; the outcome is stored"
    if event == RELEASED:
        return f"went back to the queue; the attempt {under} does not count"
    if event == RETRIED:
        error = f" ({brief(said['note'])})" if said["note"] else ""
        return f"failed {under} in attempt {said['attempts']}{error}; due again at {moment(said['retry_ms'])}"
    if event == REOPENED:
        return f"requeued, due at {moment(said['retry_ms'])}, after {said['attempts']} attempts"
    if event == EXPIRED:
        return f"went back to the queue: the lease {under} expired in attempt {said['attempts']}"
    return f"ended by event {event} {under}"


def _reopen(args: Args) -> str:
    runs = [one["run"] for one in args["runs"]]
    return f"{_leader(args)} requeues {tasks(runs)}, due at {moment(args['due_ms'])}"


def _purge(args: Args) -> str:
    kept = len(args["keep"])
    rest = f", but for {kept} stretches" if kept > 1 else ", but for 1 stretch" if kept else ""
    return f"{_leader(args)} purges all tasks of before {moment(args['before_ms'])}{rest}"


def _commit(args: Args) -> str:
    done = [run for claim in args["claims"] for run in claim["runs"]]
    needed = [run for claim in args["require"] for run in claim["runs"]]
    parts = [str(part["partition"]) for part in args["parts"]]
    completes = f" ends the claims on {tasks(done)}" if done else " ends no claims"
    requires = f", provided that {tasks(needed)} stay claimed" if needed else ""
    where = f", in {'partitions' if len(parts) != 1 else 'partition'} {', '.join(parts)}" if parts else ""
    return f"transaction {args['name']}{completes}{requires}{where}"


def _set_queue(args: Args) -> str:
    said = [f"{title(name)} {_setting(name, value)}" for name, value in sorted(_settings(args).items())]
    said += [f"{title(name)} back to the default" for name in args["cleared"]]
    flags = args["flags"]
    if "paused" not in flags:
        return f"queue {args['queue']}: {', '.join(said) or 'nothing is set'}"
    why = f" ({brief(args['why'])})" if args["why"] and flags["paused"] else ""
    by = f" by {args['by']}" if args["by"] else ""
    more = f"; {', '.join(said)}" if said else ""
    return f"queue {args['queue']} is {'paused' if flags['paused'] else 'resumed'}{by}{why}{more}"


def _settings(args: Args) -> dict[str, Any]:
    flags = {name: on for name, on in args["flags"].items() if name != "paused"}
    return {**args["numbers"], **args["words"], **flags}


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "retries" and value < 0:
        return "until success"
    if name in SETTINGS and "thousandths" in SETTINGS[name].marks:
        return f"{value / 1_000:g}/s" if value else "unlimited"
    if name == "concurrency" and not value:
        return "unlimited"
    return duration(value) if name.endswith("_ms") else str(value)


def _hold(args: Args) -> str:
    if not args["for_ms"]:
        return f"transactions continue: the hold {args['name']} is over"
    return f"transactions wait for up to {duration(args['for_ms'])}: {args['why']} (hold {args['name']})"


def _set_periodic(args: Args) -> str:
    rest = ", paused" if args["paused"] else f", next at {moment(args['next_ms'])} if the schedule is new"
    said = ", ".join(f"{title(name)} {_setting(name, value)}" for name, value in sorted(args["options"].items()))
    more = f"; its tasks have {said}" if said else ""
    return (
        f"periodic task {args['name']} goes to queue {args['queue']} by the schedule {args['schedule']!r} "
        f"in zone {args['zone']}{rest}{more}"
    )


def _pause_periodic(args: Args) -> str:
    if args["paused"]:
        return f"periodic task {args['name']} is paused"
    return f"periodic task {args['name']} is resumed, next at {moment(args['next_ms'])}"


def _fire_periodic(args: Args) -> str:
    count = args["count"]
    runs = "1 run is" if count == 1 else f"{count or 'no'} runs are"
    return (
        f"periodic task {args['name']}, due at {moment(args['fired_ms'])}: {runs} enqueued, "
        f"the next is due at {moment(args['next_ms'])}"
    )


def _submit_job(args: Args) -> str:
    most = f" to {args['max_slots']}" if args["max_slots"] else " or more"
    return f"job {args['id']} is submitted: {args['min_slots']}{most} slots, {args['scheduler']}"


def _fail_job(args: Args) -> str:
    return f"job {args['job']} failed under version {args['version']}: {brief(args['error'])}"


def _drop_savepoint(args: Args) -> str:
    why = f": {brief(args['why'])}" if args["why"] else ""
    return f"savepoint {args['name']} is removed{why}"


def _commit_batch(args: Args) -> str:
    whose = f"batch {args['batch']} of job {args['job']} under version {args['version']}" if args["job"] else "a group"
    return f"{whose}: {'; '.join(map(_commit, args['transactions'])) or 'nothing but its offsets'}"


def _settle(args: Args) -> str:
    many = "s" if len(args["names"]) > 1 else ""
    return f"{_leader(args)} has made its part{many} of transaction{many} {', '.join(args['names'])} visible"


def _leader(args: Args) -> str:
    return f"partition {args['partition']} (epoch {args['epoch']})"


_SENTENCES: Mapping[str, str | Callable[[Args], str]] = MappingProxyType(
    {
        "create_cluster": "cluster {name} is created under the id {id}: {partitions} partitions, "
        "{replicas} copies of each",
        "prepare_join_cluster": _prepare_join,
        "notify_join_cluster": "joining peer {joiner} learns which peers it must watch",
        "accept_join_cluster": "peer {joiner} becomes a member of the ring",
        "abort_join_cluster": "peer {joiner} gives up joining",
        "leave_cluster": _leave,
        "set_slots": "peer {peer} offers {slots} slots",
        "drain_node": _drain,
        "replace_node": "the copies of absent node {node} are made elsewhere",
        "ready_partition": "partition {partition} is served by its leader of epoch {epoch}",
        "settle_partition": "partition {partition} has its copies where they belong (epoch {epoch})",
        "yield_partition": "partition {partition} is given up by its leader of epoch {epoch}",
        "force_partition": _force,
        "set_queue": _set_queue,
        "grant_claims": _grant,
        "grant_limited_claims": _grant_limited,
        "renew_claims": _renew,
        "release_claims": _release,
        "expire_claims": _expire,
        "reopen_tasks": _reopen,
        "purge": _purge,
        "commit_transaction": _commit,
        "settle_transactions": _settle,
        "hold_transactions": _hold,
        "set_periodic": _set_periodic,
        "pause_periodic": _pause_periodic,
        "remove_periodic": "periodic task {name} is removed",
        "fire_periodic": _fire_periodic,
        "submit_job": _submit_job,
        "replay_job": lambda args: f"{_submit_job(args)}, from the places of an earlier batch",
        "replace_job": lambda args: f"{_submit_job(args)}, in place of job {args['replaces']}, which is ended",
        "driver_ready": "job {job} runs under version {version}",
        "supersede_driver": "version {version} of job {job} is superseded: another process runs it at the same peer",
        "seal_input": "input {input} of job {job} is sealed: no more data comes",
        "kill_job": "job {job} is killed",
        "commit_batch": _commit_batch,
        "complete_job": "job {job} is completed under version {version}",
        "fail_job": _fail_job,
        "report_job": "the progress of job {job} under version {version} is recorded",
        "begin_savepoint": "savepoint {name} of job {job} is begun",
        "keep_savepoint": "savepoint {name} is complete: after batch {batch} of its job, {size_bytes} bytes at {place}",
        "drop_savepoint": _drop_savepoint,
        "restore_job": lambda args: f"{_submit_job(args)}, from savepoint {args['savepoint']}",
        "gc": "log collection: the replica at this position becomes the snapshot, and earlier records are trimmed",
        "finish_gc": "the collection at {position} is finished: {trimmed} records are trimmed, "
        "the snapshot has {origin_bytes} bytes",
        "raise_minimum": "entry {name} may be used in version {version} from now on",
        SET_REPLICA: "the replica of position {position} is read from the snapshot; earlier records are trimmed",
    }
)
"""Entry name -> its sentence, or a function of it.

A test compares the names with the registry.
"""
