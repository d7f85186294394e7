"""Golden files: the bytes and the effect of every entry and version, frozen when it was made.

Logs outlive programs, and peers of two versions share one ring. So the encoding of an entry's
version and its effect never change. This folder has, for each version of each entry,

* ``entries/<name>-<version>.json``: the bytes of an example, its decoded arguments, and the bytes
  of a record with it,
* ``logs/<name>.jsonl``: whole logs, record by record, with every verdict, a digest of the replica
  after it, and the snapshot that was packed in the middle.

``python -m tests.entries.golden --add`` adds the missing files and changes no others. If a file no
longer fits the program, the program is wrong: leave the version as it was and make a new one
(``docs/upgrades.rst``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import frozen

from log_entries.registry import ENTRIES
from onyxq.core.cluster_settings import Settings
from onyxq.core.diff import diff, in_words, plain
from onyxq.core.entry import Entries, Form, Malformed, decode_args
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import Record
from onyxq.core.log.record import decode_record, encode_entry, encode_record
from onyxq.core.replica import (
    EMPTY,
    Cluster,
    Hold,
    Job,
    Node,
    Partition,
    Peer,
    Periodic,
    Queue,
    Remembered,
    Replica,
    Ring,
    Snapshot,
    Transaction,
)
from onyxq.core.snapshot import pack, unpack
from onyxq.core.step import Step, step

HOME = Path(__file__).parent
KINDS = (
    Replica,
    Cluster,
    Settings,
    Ring,
    Peer,
    Node,
    Partition,
    Remembered,
    Snapshot,
    Queue,
    Transaction,
    Periodic,
    Job,
    Hold,
)
HEAD = ("cluster-id", "peer-1", 7, 1_700_000_000_000, Measured(41, 1_900, 12_345))
"""Fields at the start of the examples' records."""
ADVICE = (
    "Peers of other versions, and logs that exist, hold on to the meaning that is frozen here. Leave this version "
    "as it was and add a new one: docs/upgrades.rst."
)


# --- bytes ---------------------------------------------------------------------------


def entry_file(name: str, version: int) -> str:
    """Return the file of one version of an entry."""
    return f"entries/{name}-{version}.json"


def frozen_entry(args: Any, entries: Entries = ENTRIES) -> dict[str, Any]:
    """Return the frozen form of an example."""
    packed = encode_entry(args, entries)
    record = encode_record(*HEAD[:4], [packed], measured=HEAD[4])
    return {"arguments": plain(args), "entry": packed.hex(), "record": record.hex()}


def broken_bytes(name: str, version: int, kept: Mapping[str, Any], entries: Entries = ENTRIES) -> Iterator[str]:
    """Yield the differences from a frozen example, in words."""
    form = entries[name].forms.get(version) if name in entries else None
    if form is None:
        yield f"{name} version {version} is not known any more. {ADVICE}"
        return
    content = decode_record(bytes.fromhex(kept["record"]))
    if content is None or content[:5] != HEAD:
        yield f"the record of {name} version {version} is read differently now. {ADVICE}"
        return
    yield from _broken_entry(name, version, kept, form, content.entries[0], entries)


def _broken_entry(
    name: str, version: int, kept: Mapping[str, Any], form: Form, raw: Any, entries: Entries
) -> Iterator[str]:
    try:
        args = decode_args(form.args, raw.args)
    except Malformed as error:
        yield f"the arguments of {name} version {version} cannot be read any more: {error}. {ADVICE}"
        return
    if (raw.name, raw.version, plain(args)) != (name, version, kept["arguments"]):
        yield f"the arguments of {name} version {version} are read as {plain(args)} now. {ADVICE}"
    if frozen_entry(args, entries) != kept:
        yield f"{name} version {version} is written in other bytes now. {ADVICE}"


# --- meaning ---------------------------------------------------------------------------


@frozen
class FrozenLog:
    """A frozen log: the fields that it knows, and for each record its outcome."""

    fields: Mapping[str, list[str]]
    origin: str
    """Snapshot of the replica after the middle record, in hexadecimal."""
    records: list[dict[str, Any]]


def known_fields() -> dict[str, list[str]]:
    """Return the replica's present fields, by class."""
    return {kind.__name__: [item.name for item in attrs.fields(kind)] for kind in KINDS}


def digest(replica: Replica, fields: Mapping[str, list[str]]) -> str:
    """Return the digest of these fields of a replica; later fields do not count."""
    text = json.dumps(_seen(replica, fields), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _seen(value: Any, fields: Mapping[str, list[str]]) -> Any:
    kind = type(value)
    if kind in KINDS:
        return {name: _seen(getattr(value, name), fields) for name in fields.get(kind.__name__, ())}
    if isinstance(value, Mapping):
        return {str(plain(key)): _seen(value[key], fields) for key in value}
    return plain(value)


def frozen_log(
    records: list[Record], entries: Entries = ENTRIES, *, fields: Mapping[str, list[str]] | None = None
) -> FrozenLog:
    """Return the frozen form of a log; ``fields`` are those that count, by default all."""
    fields = fields or known_fields()
    replica, kept, origin = EMPTY, [], b""
    for record in records:
        done = step(replica, record, entries)
        replica = done.replica
        if len(kept) == len(records) // 2:
            origin = pack(replica)
        kept.append(
            {
                "position": record.position,
                "ctime_ms": record.ctime_ms,
                "data": record.data.hex(),
                "became": became(done),
                "digest": digest(replica, fields),
            }
        )
    return FrozenLog(fields, origin.hex(), kept)


def became(done: Step) -> list[str]:
    """Return the outcome of a record, entry by entry."""
    if done.problem:
        return [done.problem]
    return [f"{one.name} {one.version}: {one.verdict}" for one in done.outcomes]


def broken_meaning(name: str, log: FrozenLog, entries: Entries = ENTRIES) -> str:
    """Return the first record of a frozen log whose effect differs, in words; empty if there is none."""
    for kind, names in log.fields.items():
        if known_fields().get(kind, [])[: len(names)] != names:
            return f"origins are packed in the order of fields: those of {kind} were {names}; new ones go to the end"
    replica = EMPTY
    for kept in log.records:
        record = Record(kept["position"], kept["ctime_ms"], bytes.fromhex(kept["data"]))
        before, done = replica, step(replica, record, entries)
        replica = done.replica
        if became(done) != kept["became"]:
            return f"record {record.position} of the log {name} was {kept['became']}, now {became(done)}. {ADVICE}"
        if digest(replica, log.fields) != kept["digest"]:
            changes = "\n  ".join(in_words(diff(before, replica)))
            return (
                f"record {record.position} of the log {name} ({', '.join(kept['became'])}) leaves another replica "
                f"than it did. {ADVICE} Now it changes\n  {changes}"
            )
    middle = log.records[len(log.records) // 2]
    if digest(unpack(bytes.fromhex(log.origin)), log.fields) != middle["digest"]:
        return f"the origin of the log {name} is read differently now. {ADVICE}"
    return ""


# --- files ------------------------------------------------------------------------------


def read_entries(home: Path = HOME) -> dict[tuple[str, int], dict[str, Any]]:
    """Every frozen example."""
    found = {}
    for path in sorted((home / "entries").glob("*.json")):
        name, _, version = path.stem.rpartition("-")
        found[name, int(version)] = json.loads(path.read_text("utf-8"))
    return found


def read_logs(home: Path = HOME) -> dict[str, FrozenLog]:
    """Every frozen log."""
    found = {}
    for path in sorted((home / "logs").glob("*.jsonl")):
        head, *lines = path.read_text("utf-8").splitlines()
        found[path.stem] = FrozenLog(**json.loads(head), records=[json.loads(line) for line in lines])
    return found


def add_missing(
    home: Path, examples: Mapping[str, Any], scripts: Mapping[str, Any], entries: Entries = ENTRIES
) -> list[str]:
    """Write the missing files and return their names; an existing file is never changed."""
    wanted: dict[str, str] = {}
    for name, args in examples.items():
        wanted[entry_file(name, entries[name].version)] = json.dumps(frozen_entry(args, entries), indent=1) + "\n"
    for name, script in scripts.items():
        if not (home / "logs" / f"{name}.jsonl").exists():
            log = frozen_log(script(), entries)
            lines = [json.dumps({"fields": log.fields, "origin": log.origin}), *map(json.dumps, log.records)]
            wanted[f"logs/{name}.jsonl"] = "\n".join(lines) + "\n"
    added = []
    for place, text in wanted.items():
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        added.append(place)
    return added
