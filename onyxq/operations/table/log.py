"""Operations on the log and the replica: records, collection, the origin, extensions, backups."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, field

from onyxq.core.limits import (
    BLOB,
    ENCODED,
    EXTENSION_CHARACTERS_MAX,
    HOLD_MS_MAX,
    NAME_CHARACTERS_MAX,
    POSITION_MAX,
)
from onyxq.core.log.interface import START
from onyxq.operations.table.access import everywhere
from onyxq.operations.table.cluster import Number, Position
from onyxq.operations.table.operation import Args, Http, Operation, Place, Result, Verb

LOG_PAGE_MAX = 1_000
"""Most records of one answer."""
WAIT_MS_MAX = 60_000
PARTS_MAX = 1 << 20
PLACE_BYTES_MAX = 128
At: TypeAlias = Annotated[int, Meta(ge=0, le=POSITION_MAX)]
"""A position in the log."""
Since: TypeAlias = Annotated[int, Meta(ge=START, le=POSITION_MAX)]
"""A position in the log, or the one before the first record."""
Part: TypeAlias = Annotated[int, Meta(ge=0, le=PARTS_MAX, description="Number of the part, from 0.")]
Blob: TypeAlias = Annotated[bytes, Meta(extra=BLOB)]
ExtensionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=EXTENSION_CHARACTERS_MAX)]
HoldText: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]


class EntryView(Result):
    """An entry of a record, with its verdict."""

    entry: str
    args: dict[str, Any]
    verdict: str


class RecordView(Result):
    """A record of the log."""

    position: int
    at_ms: int
    peer: str
    problem: str | None
    entries: list[EntryView]


class Log(Result):
    """Records of the log."""

    position: Position
    records: list[RecordView]


class GcReport(Result):
    """What a log collection did."""

    position: Position
    trimmed: int
    origin_bytes: int


class RawRecord(Result, array_like=True):
    """A record of the log as it is stored."""

    position: int
    at_ms: int
    data: Blob


class RawLog(Result, omit_defaults=True):
    """Records of the log as they are stored, or the position up to which they are trimmed."""

    position: Position
    records: list[RawRecord] | None = None
    next: Annotated[int | None, Meta(description="First position of the next page.")] = None
    trimmed: Annotated[
        int | None, Meta(description="Instead of records: position of the origin, after which the log begins.")
    ] = None


class OriginPart(Result):
    """A part of the log's origin, which is a packed replica."""

    position: Annotated[int, Meta(description="Position of the origin; -1: nothing was collected yet.")]
    part: int
    parts: int
    bytes: int
    data: Blob


class ReplicaDigest(Result):
    """Position, digest and log time of a replica. At one position they are equal on all peers."""

    position: Position
    digest: str
    log_time_ms: int


class ReplicaPart(OriginPart):
    """A part of the packed replica."""

    digest: str


class Submitted(Result):
    """The outcome of an entry."""

    position: Position
    verdict: Annotated[str, Meta(description="`applied`, or why nothing changed.")]


class ExtensionState(Result):
    """The state of an extension."""

    position: Position
    state: Any


class Held(Result):
    """A hold of transactions."""

    position: Annotated[int, Meta(description="Position of its entry.")]


class BackupRows(Result):
    """Rows of a partition as they are stored."""

    rows: Annotated[list[list[bytes]], Meta(description="Key and value of each.")]
    after: Annotated[bytes | None, Meta(description="Where the next page begins; null: this is the last one.")]
    position: Annotated[int, Meta(description="Position up to which the leader had read the log.")]


class GetLog(Args):
    """Return records of the log that this node applied recently."""

    from_: Annotated[int, Meta(ge=0, le=1 << 62, description="First position; default: near the end.")] | None = field(
        default=None, name="from"
    )
    limit: Annotated[int, Meta(ge=1, le=LOG_PAGE_MAX)] = 100


class Gc(Args):
    """Take a snapshot of the replica and trim the log before it.

    The answer comes once the log is trimmed.
    """


class GetRawLog(Args):
    """Return records of the log as they are stored, to follow or replay it."""

    from_: Annotated[At, Meta(description="First position.")] = field(default=0, name="from")
    limit: Annotated[int, Meta(ge=1, le=LOG_PAGE_MAX)] = LOG_PAGE_MAX
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for a record at that position.")
    ] = 0


class GetOrigin(Args):
    """Return a part of the origin from which new readers of the log start."""

    part: Part = 0
    position: Annotated[
        Since | None, Meta(description="Position of the origin of the earlier parts; refused if there is a newer one.")
    ] = None


class GetReplica(Args):
    """Return the position, the digest and the log time of this peer's replica."""


class GetReplicaPart(Args):
    """Return a part of this peer's replica, packed."""

    part: Part = 0
    position: Annotated[
        Since | None, Meta(description="Position of the replica of the earlier parts; refused if that is gone.")
    ] = None


class SubmitEntry(Args):
    """Append an entry of an extension to the log.

    The answer has its verdict: `applied`, or why nothing changed.
    """

    entry: Annotated[ExtensionName, Meta(description="Name of the entry.")]
    args: Annotated[
        dict[str, Any] | list[Any], Meta(description="Arguments of the entry: by name, or all in order.", extra=ENCODED)
    ] = field(default_factory=dict)


class GetExtension(Args):
    """Return the state of an extension."""

    name: Annotated[ExtensionName, Meta(description="Name of the extension.")]
    seen: Annotated[Since | None, Meta(description="The answer is not older than this position of the log.")] = None


class HoldTransactions(Args):
    """Make transactions wait during a backup.

    A repeat under the same name moves the end of the hold.
    """

    name: Annotated[HoldText, Meta(min_length=1, description="Name of the hold.")]
    for_ms: Annotated[
        int, Meta(ge=0, le=HOLD_MS_MAX, description="How long they wait from now by the log's clock; 0 ends the hold.")
    ]
    why: Annotated[HoldText, Meta(description="For people.")] = ""


class GetBackupRows(Args):
    """Return a page of the rows of a partition, for a backup.

    The leader answers once it has read the log up to a position, and has stored what it read.
    """

    partition: Number
    position: Annotated[At, Meta(description="Position that the leader must have read.")]
    after: Annotated[bytes, Meta(max_length=PLACE_BYTES_MAX, description="Where the page before ended.")] = b""


GET_LOG = Operation(
    name="log",
    args=GetLog,
    result=Log,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/log", id="get_log", tag="cluster"),
    python="log",
    python_names={"from": "from_"},
    example={"from": 0, "limit": 10},
)
GC = Operation(
    name="gc",
    args=Gc,
    result=GcReport,
    access=everywhere("operate"),
    http=Http(verb="POST", path="/v1/gc", id="gc", tag="cluster"),
    verbs=(Verb(name="log gc", about="take a snapshot of the replica and trim the log before it"),),
    python="gc",
)
GET_RAW_LOG = Operation(
    name="log.raw",
    args=GetRawLog,
    result=RawLog,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/log/raw", id="get_raw_log", tag="cluster", waits=True),
    example={"from": 0, "limit": 10},
)
GET_ORIGIN = Operation(
    name="origin",
    args=GetOrigin,
    result=OriginPart,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/origin", id="get_origin", tag="cluster", errors=(409,)),
)
GET_REPLICA = Operation(
    name="replica",
    args=GetReplica,
    result=ReplicaDigest,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/replica", id="get_replica", tag="cluster"),
)
GET_REPLICA_PART = Operation(
    name="replica.part", args=GetReplicaPart, result=ReplicaPart, access=everywhere("read"), reads=True
)
SUBMIT_ENTRY = Operation(
    name="submit",
    args=SubmitEntry,
    result=Submitted,
    access=everywhere("produce"),
    bounded=True,
    large=True,
    http=Http(
        verb="POST",
        path="/v1/entries/{entry}",
        id="submit_entry",
        tag="extensions",
        whole="args",
        errors=(403, 404, 409),
    ),
    python="submit_entry",
    example={"entry": "lock.acquire", "args": {"name": "nightly"}},
)
GET_EXTENSION = Operation(
    name="extension",
    args=GetExtension,
    result=ExtensionState,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/extensions/{name}", id="get_extension", tag="extensions", errors=(404,)),
    python="extension",
    example={"name": "lock"},
)
HOLD_TRANSACTIONS = Operation(
    name="backup.hold",
    args=HoldTransactions,
    result=Held,
    access=everywhere("admin"),
    example={"name": "nightly", "why": "a backup", "for_ms": 60_000},
)
GET_BACKUP_ROWS = Operation(
    name="backup.rows",
    args=GetBackupRows,
    result=BackupRows,
    access=everywhere("admin"),
    place=Place.LEADER,
    reads=True,
    example={"partition": 0, "position": 4711},
)
LOG = (GET_LOG, GET_RAW_LOG, GET_ORIGIN, GET_REPLICA, GET_REPLICA_PART, GC)
EXTENSIONS = (SUBMIT_ENTRY, GET_EXTENSION)
BACKUPS = (HOLD_TRANSACTIONS, GET_BACKUP_ROWS)
