"""All errors that a user can meet: one hierarchy with stable codes.

Each class carries ``code`` (stable, for programs), ``status`` (HTTP), ``exit_code``
(command line) and ``hint`` (what to do next; empty if the message is enough).
``field`` names the wrong argument, if there is one.  Errors travel over the wire as maps; see `OnyxqError.to_map`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import frozen


class OnyxqError(Exception):
    """Base class of all errors that OnyxQ raises."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    hint: ClassVar[str] = "This is a bug in OnyxQ; please report it with the server's log."

    def __init__(
        self,
        message: str = "",
        *,
        field: str | None = None,
        hint: str | None = None,
        details: Sequence[Sequence[Any]] = (),
    ) -> None:
        super().__init__(message or self.code.replace("_", " "))
        self.message = message or self.code.replace("_", " ")
        self.field = field
        self.advice = hint or self.hint
        """What to do next; empty if the message is enough."""
        if self.advice:
            self.add_note(f"Hint: {self.advice}")
        self.details = [list(one) for one in details]
        """The things that the error is about, one by one, if there are several."""
        self.ids: tuple[bytes, ...] = ()
        """Ids of the tasks of an enqueue that may be stored although it failed, in the caller's order.

        Repeating the enqueue with these ids creates no second task.
        """

    def named(self) -> str:
        """Return the message with the full name of the field in front, once."""
        if not self.field or re.match(rf"{re.escape(self.field)}\b", self.message):
            return self.message
        last = self.field.rpartition(".")[2]
        if re.match(rf"{re.escape(last)}\b", self.message):
            return self.field + self.message[len(last) :]
        return f"{self.field}: {self.message}"

    def to_map(self) -> dict[str, Any]:
        """Return the map that travels over the wire."""
        said = {"code": self.code, "message": self.message, "field": self.field, "hint": self.advice}
        return {**said, "details": self.details} if self.details else said


class BadRequest(OnyxqError):
    """An argument is missing, of the wrong type or out of range; nothing was stored."""

    code, status, exit_code, hint = "bad_request", 400, 2, ""


class TooLarge(BadRequest):
    """A body, task or frame is over its limit."""

    code, status, hint = "too_large", 413, "Send less at once, or keep large data elsewhere."


class NotFound(OnyxqError):
    """No such task, queue, flow, job, savepoint, timer, peer or partition."""

    code, status, exit_code, hint = "not_found", 404, 3, "Check the id."


class Conflict(OnyxqError):
    """The request contradicts what is stored."""

    code, status, exit_code, hint = "conflict", 409, 4, "Read the present state first."


class Purged(OnyxqError):
    """The id is from a time for which the cluster no longer keeps finished tasks."""

    code, status, exit_code, hint = (
        "purged",
        410,
        4,
        "Give a new task a fresh id. If you enqueued this task before, it may be completed and purged.",
    )


class JobConflict(Conflict):
    """Another job was submitted under the same id."""

    code, hint = "job_conflict", "Give the job an id of its own, or submit exactly what was submitted before."


class KeyTaken(Conflict):
    """Another task of the queue holds the unique key, and the enqueue asked to be refused then."""

    code, hint = "key_taken", "Use the task that the message names, or choose another on_conflict."

    @property
    def existing(self) -> bytes | None:
        """The id of the task that holds the key."""
        return bytes.fromhex(self.details[0][0]) if self.details else None


class StaleToken(Conflict):
    """The fencing token is not valid: its claim has ended.

    For example, the lease expired, the claim was released, a newer claim was granted, or the task was requeued or
    cancelled.
    """

    code, hint = "stale_token", "Stop working on the task: your claim has ended."


class Superseded(Conflict):
    """A newer driver of the job has taken over, or the job has ended; nothing was done."""

    code, hint = "superseded", "Stop this driver: a newer one does its work, or the job has ended."


class SequenceGap(Conflict):
    """An update's sequence number is not the next one of its claim."""

    code, hint = "sequence_gap", "Send the missing updates first; they count from 0 per claim."


class AlreadyFinished(Conflict):
    """The task is completed, failed for good or cancelled."""

    code, hint = "already_finished", "Nothing is left to do for this task."


class TaskFailed(Conflict):
    """The task failed or was cancelled, so it has no result."""

    code, hint = "task_failed", "Read what happened with: onyxq task explain ID"


class StoreFull(Conflict):
    """The task store has reached its size limit."""

    code, hint = "store_full", "Delete tasks, or have an operator raise the limit."


class Unauthorized(OnyxqError):
    """The request carries no credential, or an unknown one."""

    code, status, exit_code = "unauthorized", 401, 1
    hint = (
        "Give a credential that the peers know: with --token-file FILE, ONYXQ_TOKEN, or token in onyxq.toml. "
        "In Python: token=...; over HTTP: Authorization: Bearer TOKEN."
    )


class Forbidden(OnyxqError):
    """The credential's role does not allow this."""

    code, status, exit_code = "forbidden", 403, 1
    hint = "Use a credential that has this role. The peers' access file (--access) gives roles to tokens."


class Unavailable(OnyxqError):
    """No leader, log or quorum is available now; a retry may succeed."""

    code, status, exit_code, hint = "unavailable", 503, 5, "Try again in a moment."


class LogUnavailable(Unavailable):
    """The replicated log cannot be reached: claims wait, enqueues and completions continue."""

    code, hint = "log_unavailable", "Check that the node reaches ZooKeeper. Claims resume once it does."


class NotLeader(Unavailable):
    """The node does not lead that partition (not yet, or no longer)."""

    code, hint = "not_leader", "Ask the partition's present leader."


class StaleEpoch(Unavailable):
    """The node has already seen a higher epoch of the partition."""

    code, hint = "stale_epoch", "Another leader has taken over."


class Behind(Unavailable):
    """The node must catch up before it accepts writes of this epoch."""

    code, hint = "behind", "Wait: the leader sends the missing rows and repeats the write."


class Unknown(Unavailable):
    """The outcome is not known, or fewer nodes than requested have the data; repeating the request is safe.

    For an enqueue or update, ``details`` has ``[first id, count, copies]`` for each run of consecutive ids.
    """

    code, hint = "unknown", "Repeat the same request: it has effect at most once."

    @property
    def copies(self) -> int | None:
        """Number of nodes that certainly have all of the data; None if the answer does not include it."""
        told = [one[2] for one in self.details if len(one) == 3 and type(one[2]) is int]
        return min(told, default=None)


class Overloaded(OnyxqError):
    """A limit on requests, connections, memory or rate is reached; nothing was done.

    ``retry_after_ms``: pause before the next attempt.
    """

    code, status, exit_code, hint = "overloaded", 429, 5, "Slow down and try again."

    def __init__(self, message: str = "", *, retry_after_ms: int = 1000, **more: Any) -> None:
        super().__init__(message, **more)
        self.retry_after_ms = retry_after_ms

    def to_map(self) -> dict[str, Any]:
        """Return the map of `OnyxqError.to_map` with ``retry_after_ms``."""
        return {**super().to_map(), "retry_after_ms": self.retry_after_ms}


class TimedOut(OnyxqError):
    """The time limit of the request has passed."""

    code, status, exit_code = "timed_out", 504, 6
    hint = "Allow more time. `onyxq doctor` checks the cluster."


class ClusterMismatch(OnyxqError):
    """A store, record or connection belongs to another cluster."""

    code, status, exit_code, hint = "cluster_mismatch", 421, 1, "Point it at the cluster it belongs to."


class LogWentBack(ClusterMismatch):
    """The log lacks records that this node has read, or has other records in their place."""

    code, status, exit_code, hint = (
        "log_went_back",
        503,
        1,
        (
            "ZooKeeper was set back to an older copy, wiped or replaced. Keep all data directories. Bring back the"
            " newest copy of ZooKeeper's data; if there is none, run: onyxq cluster recover (see docs/runbooks.rst)."
        ),
    )


class NodeCopied(OnyxqError):
    """Another process has joined the cluster as this node, from another data directory."""

    code, hint = (
        "node_copied",
        (
            "Use only one of the two directories. To run a second node, move this directory away and start with an"
            " empty one: the cluster fills it under a new node id."
        ),
    )


class Misdirected(OnyxqError):
    """The request was sent to a host name that is not one of this peer's."""

    code, status, hint = (
        "misdirected",
        421,
        "Use the peer's IP address or localhost, add the host name to its setting http_hosts, or configure tokens.",
    )


class ClockWrong(OnyxqError):
    """This machine's clock differs by more than 5 s from the median of the peers' clocks."""

    code, hint = "clock_wrong", "Set the machine's clock (NTP) and start the peer again."


class OlderThanCluster(OnyxqError):
    """The cluster has enabled an entry, or a version of an entry, that this program does not know."""

    code, hint = "older_than_cluster", "Install the version, and the extensions, that the other peers run."


class NotEnabled(Conflict):
    """The entry cannot be used yet: not every peer in the ring knows it."""

    code, hint = "not_enabled", "It is enabled automatically once every peer of the ring has it installed."


class BadExtension(OnyxqError):
    """An installed extension cannot be loaded."""

    code, hint = "bad_extension", "Correct the extension that the message names, or uninstall it."


class ExtensionFailed(OnyxqError):
    """An extension broke its rules: no peer can read the log past its entry until the extension is corrected."""

    code, hint = "extension_failed", "Install a corrected version of the extension on every peer; nothing is lost."


class Corrupt(Unavailable):
    """Stored or received bytes do not match their checksum; rows are repaired, so a retry may succeed."""

    code, hint = "corrupt", "The row is repaired from another node's copy; try again, and check the disk."


class StoreFailed(Unavailable):
    """The store could not write: the disk is full or failing. Repeating the request is safe."""

    code, hint = "store_failed", "Free space on, or replace, the node's disk."


class StoreDamaged(Unavailable):
    """The store's file is damaged beyond its rows: the node stops, and sets the file aside at the next start."""

    code = "store_damaged"
    hint = (
        "Start the peer again: it checks the file, and other nodes refill it if it is set aside. "
        "Without other nodes, restore a backup. Check the disk."
    )


class LogDamaged(Corrupt):
    """A file of the embedded log is damaged. The stores of its nodes keep copies of the newest records."""

    code = "log_damaged"
    hint = (
        "Check the disk. No task is lost: move the directory of the log away, and make a new log from the copies in the"
        " nodes' stores: onyxq cluster recover (see docs/operations.rst). Do not restore a backup before that."
    )


class ProtocolError(OnyxqError):
    """A frame is malformed; the connection is closed."""

    code, status, hint = "protocol_error", 400, "Check that client and server versions fit."


class Incomplete(OnyxqError):
    """A part that this command needs is not installed."""

    code, exit_code, hint = "missing_part", 1, "Install what the message names."


def _all(cls: type[OnyxqError]) -> list[type[OnyxqError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _all(child))]


def by_code() -> dict[str, type[OnyxqError]]:
    """Return all errors by code, also those that other modules define; of one code the most general class."""
    return {cls.code: cls for cls in reversed(_all(OnyxqError))}


BY_CODE = by_code()
"""The errors that `from_map` can make."""


def from_map(error: dict[str, Any]) -> OnyxqError:
    """Return the error that `OnyxqError.to_map` described."""
    cls = BY_CODE.get(str(error.get("code")), OnyxqError)
    said = error.get("details")
    details = [one for one in said if isinstance(one, (list, tuple))] if isinstance(said, (list, tuple)) else ()
    more: dict[str, Any] = {}
    if cls is Overloaded and type(error.get("retry_after_ms")) is int:
        more = {"retry_after_ms": error["retry_after_ms"]}
    return cls(str(error.get("message", "")), field=error.get("field"), hint=error.get("hint"), details=details, **more)


@frozen
class Refused:
    """Tasks of a request that were refused, and why: ``count`` consecutive ids from ``first`` on."""

    first: bytes
    count: int
    error: OnyxqError


class BatchRefused(Conflict):
    """Some claims of a request were refused; the others were accepted. ``refused`` names them."""

    code, hint = "batch_refused", "Stop working on the refused tasks; the others are done."

    def __init__(self, refused: list[Refused]) -> None:
        tasks = sum(part.count for part in refused)
        super().__init__(f"{tasks} claims were refused, the first because: {refused[0].error.message}")
        self.refused = refused


class StoreRefused(Conflict):
    """A request to the task store changed nothing because its conditions do not hold.

    The lists name ids; ``bugs`` describes mistakes in the request itself.
    """

    code, hint = "store_refused", "Look at the tasks that are named, and decide again."

    def __init__(self, refused: dict[str, list[Any]]) -> None:
        said = [f"{name}: {', '.join(map(str, found))}" for name, found in refused.items() if found]
        super().__init__(f"the task store refused: {'; '.join(said)}")
        self.changes: list[int] = refused["changes"]
        self.deletes: list[int] = refused["deletes"]
        self.depends: list[int] = refused["depends"]
        self.owned: list[int] = refused["owned"]
        self.bugs: list[str] = refused["bugs"]


def causes(error: BaseException) -> list[Exception]:
    """Return the errors in an exception group one by one, without cancellations and interrupts."""
    if isinstance(error, BaseExceptionGroup):
        return [one for part in error.exceptions for one in causes(part)]
    return [error] if isinstance(error, Exception) else []


def first_cause(error: BaseException) -> BaseException:
    """Return the first error of an exception group: the one that started the failure."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


for _named in (*_all(OnyxqError), Refused):
    _named.__module__ = "onyxq.errors"  # users import it from there, and tracebacks name it
