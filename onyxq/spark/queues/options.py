"""Options of the format ``onyxq``, checked.

Each error names the option and what was expected. Spark passes options as text and ignores the case of their names.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

from attrs import evolve, frozen

from onyxq.client.asynchronous import ADDRESS
from onyxq.core.errors import BadRequest
from onyxq.core.limits import LEASE_MS_MAX, LEASE_MS_MIN, Format
from onyxq.history.tables.columns import COLUMNS
from onyxq.history.tables.selection import STATES
from onyxq.history.tables.sources import Sources
from onyxq.operations.table.task import State
from onyxq.wire.tcp import split_address

ALL = "all"
PRIORITY = (-(1 << 31), (1 << 31) - 1)
TIMEOUT_S = 60
COMMIT_TIMEOUT_S = 600
"""How long a commit with unknown outcome is repeated, in seconds."""
MAX_ROWS = 10_000
LEASE_MS = 60_000
KEEP_S = 86_400
"""How long a batch without a job is remembered, so that a repeat is recognized; in seconds."""

COMMON = ("connect", "token", "timeout_s", "queue")
BAD_ROWS = ("refuse", "dead_letter")
READ = (
    *COMMON,
    *("schema", "bad_rows", "headers"),
    *("job", "version", "slots", "checkpoint", "input", "worker", "max_rows", "max_runs", "lease_ms", "state"),
    "partitions",
)
TABLE = (*COMMON, "table", "live", "archive", "records", "log_archive", "dump", "partitions")
FAILS = ("retry", "dead_letter")
FAIL = ("connect", "token", "timeout_s", "fail")
WRITE = (*COMMON, "priority", "delay_ms", "format", "name", "keep_s", "commit_timeout_s")
SPARKS = ("path", "checkpointlocation", "queryname")
"""Options that Spark itself adds."""


@frozen(kw_only=True)
class Target:
    """The cluster, and the job that uses it."""

    connect: str
    token: str
    timeout_ms: int
    job: str = ""
    """Empty: a user's own program."""
    version: int = -1


@frozen(kw_only=True)
class ReadOptions:
    """Options of a source."""

    target: Target
    queue: str
    queues: tuple[str, ...]
    """Names of a stream's queues, and patterns with ``*``."""
    schema: str
    """Columns of the JSON payloads; empty: they are not parsed."""
    bad_rows: str
    headers: bool
    worker: str
    max_rows: int
    max_runs: int
    lease_ms: int
    slots: int
    state: State | None
    partitions: int


@frozen(kw_only=True)
class TableOptions:
    """Options of a batch read of a table."""

    target: Target | None
    """None: only directories and files are read."""
    table: str
    queues: tuple[str, ...] | None
    sources: Sources
    partitions: int


@frozen(kw_only=True)
class FailOptions:
    """Options of a write that fails the tasks of its rows."""

    target: Target
    outcome: str
    """One of `FAILS`."""


@frozen(eq=False, slots=False)
class QueueOutput:
    """A queue that receives tasks, and their fields besides the payload.

    Equal only to itself, which is quick to compare.
    """

    queue: str
    priority: int = 0
    ordering_key: str | None = None
    """For a job: the field of a segment that is its task's ordering key."""
    delay_ms: int = 0
    format: Format = "bytes"
    own: bool = False
    """Whether it is the queue of the job's dead letters, to which only the job itself writes."""

    @cached_property
    def as_json(self) -> QueueOutput:
        """The same output, for tasks whose format is JSON."""
        return self if self.format == "json" else evolve(self, format="json")


@frozen(kw_only=True)
class WriteOptions:
    """Options of a sink of a user's own program; `onyxq.spark.plan.outputs` is the sink of jobs."""

    target: Target
    output: QueueOutput
    name: str
    keep_ms: int
    commit_timeout_ms: int


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return the options of a source; raises `BadRequest`."""
    given = _known(options, READ)
    target = target_of(given)
    state = given.get("state")
    if streaming and state is not None:
        raise _wrong("state", "is for batch reads: a stream claims what is ready")
    if not streaming and state not in (*STATES, ALL):
        raise _wrong("state", f"of a batch read must be {ALL} or one of {', '.join(STATES)}, not {state!r}")
    bad_rows = given.get("bad_rows", BAD_ROWS[0])
    if bad_rows not in BAD_ROWS:
        raise _wrong("bad_rows", f"must be {' or '.join(BAD_ROWS)}, not {bad_rows!r}")
    for name in ("schema", "bad_rows", "headers"):
        if name in given and (not streaming or target.job):
            raise _wrong(name, "is for streams of your own")
    if "bad_rows" in given and "schema" not in given:
        raise _wrong("bad_rows", "is for payloads that do not fit the option schema, which is missing")
    queue = _name(given, "queue")
    queues = (queue,) if target.job else tuple(one.strip() for one in queue.split(",") if one.strip())
    if not queues:
        raise _wrong("queue", f"must name queues, comma-separated, not {queue!r}")
    worker = f"job/{target.job}/{target.version}" if target.job else f"spark-{os.urandom(6).hex()}"
    return ReadOptions(
        target=target,
        queue=queue,
        queues=queues,
        schema=given.get("schema", ""),
        bad_rows=bad_rows,
        headers=_flag(given, "headers", default="schema" in given),
        worker=given.get("worker") or worker,
        max_rows=_integer(given, "max_rows", MAX_ROWS, 1, 1_000_000),
        max_runs=_integer(given, "max_runs", 4_000, 1, 4_000),
        lease_ms=_integer(given, "lease_ms", LEASE_MS, LEASE_MS_MIN, LEASE_MS_MAX),
        slots=_integer(given, "slots", 0, 0, 65_536),
        state=None if state == ALL else cast(State | None, state),
        partitions=_integer(given, "partitions", 0, 0, 65_536),
    )


def table_options(options: Mapping[str, str]) -> TableOptions:
    """Return the options of a table; raises `BadRequest`."""
    given = _known(options, TABLE)
    if given["table"] not in COLUMNS:
        raise _wrong("table", f"must be one of {', '.join(COLUMNS)}, not {given['table']!r}")

    def paths(name: str) -> tuple[Path, ...]:
        return tuple(Path(one) for one in given.get(name, "").split(",") if one)

    return TableOptions(
        target=target_of(given) if _flag(given, "live", default=True) else None,
        table=given["table"],
        queues=tuple(given["queue"].split(",")) if "queue" in given else None,
        sources=Sources(
            archives=paths("archive"), records=paths("records"), logs=paths("log_archive"), dumps=paths("dump")
        ),
        partitions=_integer(given, "partitions", 4, 1, 65_536),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Return the options of a sink; raises `BadRequest`."""
    given = _known(options, WRITE)
    form = given.get("format", "bytes")
    if form not in ("bytes", "json"):
        raise _wrong("format", f"must be bytes or json, not {form!r}")
    return WriteOptions(
        target=target_of(given),
        output=QueueOutput(
            queue=_name(given, "queue"),
            priority=_integer(given, "priority", 0, *PRIORITY),
            delay_ms=_integer(given, "delay_ms", 0, 0, 366 * 86_400_000),
            format=cast(Format, form),
        ),
        name=given.get("name", ""),
        keep_ms=1_000 * _integer(given, "keep_s", KEEP_S, 0, 7 * 86_400),
        commit_timeout_ms=1_000 * _integer(given, "commit_timeout_s", COMMIT_TIMEOUT_S, 1, 86_400),
    )


def fail_options(options: Mapping[str, str], columns: Sequence[str]) -> FailOptions:
    """Return the options of a write that fails tasks, whose rows have some columns; raises `BadRequest`."""
    given = _known(options, FAIL)
    if given["fail"] not in FAILS:
        raise _wrong("fail", f"must be {' or '.join(FAILS)}, not {given['fail']!r}")
    if "task" not in columns or not set(columns) <= {"task", "error"}:
        raise BadRequest(
            f"a write with the option fail needs the column task, and may have error, not {', '.join(columns)}",
            field="task",
            hint="Read the stream with headers=true or a schema, and select task and error.",
        )
    return FailOptions(target=target_of(given), outcome=given["fail"])


def _known(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    given = {str(name).lower(): value for name, value in options.items()}
    for name in sorted(given):
        if name not in names and name not in SPARKS:
            near = difflib.get_close_matches(name, list(names), 1)
            hint = f"; is {near[0]} meant?" if near else f"; there are {', '.join(names)}"
            raise BadRequest(f"the format onyxq has no option {name!r}{hint}", field=name)
    return given


def target_of(given: Mapping[str, str]) -> Target:
    """Return the cluster, and the job if there is one; raises `BadRequest`."""
    connect = given.get("connect") or os.environ.get("ONYXQ_CONNECT") or ADDRESS
    for address in connect.split(","):
        try:
            split_address(address)
        except BadRequest as error:
            raise _wrong(
                "connect", f"must be HOST:PORT, or several of them, comma-separated: {error.message}"
            ) from None
    job = given.get("job", "")
    if job and "version" not in given:
        raise _wrong("version", "is missing: a job is driven under a version")
    return Target(
        connect=connect,
        token=given.get("token") or os.environ.get("ONYXQ_TOKEN") or "",
        timeout_ms=1_000 * _integer(given, "timeout_s", TIMEOUT_S, 1, 86_400),
        job=job,
        version=_integer(given, "version", -1, 0, (1 << 63) - 1) if job else -1,
    )


def _name(given: Mapping[str, str], name: str) -> str:
    found = given.get(name)
    if found is None or not 1 <= len(found) <= 200:
        raise _wrong(name, "is missing" if found is None else "must have 1 to 200 characters")
    return found


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    found = given.get(name, str(default)).lower()
    if found not in ("true", "false"):
        raise _wrong(name, f"must be true or false, not {given[name]!r}")
    return found == "true"


def _integer(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    found = given.get(name)
    if found is None:
        return default
    try:
        number = int(found)
    except ValueError:
        raise _wrong(name, f"must be a whole number, not {found!r}") from None
    if not low <= number <= high:
        raise _wrong(name, f"must be {low} to {high}, not {number}")
    return number


def _wrong(name: str, what: str) -> BadRequest:
    return BadRequest(f"option {name} {what}", field=name)
