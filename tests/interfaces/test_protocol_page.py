"""What docs/protocol.rst says of the protocol is so: each method and argument, held against a peer and its code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import fields_dict
from msgspec import inspect

from onyxq.client.pool import RETRYABLE
from onyxq.core.errors import BY_CODE
from onyxq.core.facts import TASK_BYTES_MAX, pack_task, partition_of_keys
from onyxq.core.limits import RUN_BYTES_MAX, Member, members
from onyxq.core.queue_settings import DEFAULTS, SETTINGS
from onyxq.operations.table.enqueue import TaskHeader
from onyxq.operations.table.everything import OPERATIONS
from onyxq.wire import protocol, server
from tests.interfaces.live_world import Wire, fresh_id, running

PAGE = (Path(__file__).resolve().parents[2] / "docs/protocol.rst").read_text("utf-8")
ID = fresh_id()
RUN = [ID, pack_task({"queue": "page"}, [b"x"])]
OTHER = {
    "number": "text",
    "integer": "text",
    "text": 5,
    "text or map": 5,
    "bytes": "text",
    "list": 5,
    "map": 5,
    "boolean": "text",
}
"""For each type of the page a value that is not of it."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "backup.hold": {"name": "b", "why": "a test", "for_ms": 0},
    "backup.rows": {"partition": 0, "position": 0, "after": b""},
    "enqueue": {"runs": [RUN], "w": 1},
    "ids": {"count": 2},
    "claim": {"queues": ["page"], "max": 1, "lease_ms": 1_000, "wait_ms": 0, "worker": "w", "ahead_ms": 500},
    "complete": {"items": [[ID, 1, 1, 0, [b"x"]]]},
    "fail": {"items": [[ID, 1, 1, "error", 1]]},
    "renew": {"items": [[ID, 1, 1, 1_000]]},
    "give_up": {"items": [[ID, 1, 1, "error"]]},
    "postpone": {"items": [[ID, 1, 1, "later", 1]]},
    "release": {"items": [[ID, 1, 1]]},
    "update": {"items": [[ID, 1, 0, b"x"]], "w": 1},
    "cancel": {"ids": [fresh_id()], "claimed": False},
    "transact": {
        "name": "page", "complete": [], "update": [], "enqueue": [[fresh_id(), RUN[1]]], "require": [],
        "digest": bytes(16), "made_ms": 1, "keep_ms": 60_000,
    },
    "get": {"id": fresh_id(), "seen_token": 0, "seen_seq": 0, "wait_ms": 0},
    "request.remember": {"key": bytes(16), "request": {"body": bytes(16), "at_ms": 1, "partitions": [0]}},
    "task_log": {"id": ID},
    "task_history": {"id": ID},
    "list": {
        "queue": "page", "state": "ready", "after": ID, "limit": 1, "newest_first": True,
        "where": "text", "since_ms": 1, "until_ms": 2,
    },
    "list.next": {"queue": "page", "where": "text", "after_ms": 1, "after": ID, "limit": 1},
    "count": {"queue": "page"},
    "tasks.bodies": {"runs": [[ID, 1]]},
    "queues.page": {"like": "a", "order": "name", "skip": 0, "limit": 1, "wait_ms": 1},
    "queue.get": {"queue": "page", "known": False},
    "queue.set": {
        "queue": "page", "by": "me", "why": "so", **{name: getattr(DEFAULTS, name) for name in SETTINGS},
    },
    "dead": {"queue": "page", "where": "no", "after": ID, "limit": 1, "newest_first": True},
    "queue.purge": {"queue": "page", "limit": 1},
    "dead.requeue": {"ids": [ID], "queue": "page", "where": "no", "all": False, "limit": 1},
    "dead.discard": {"ids": [ID], "queue": "page", "where": "no", "all": False, "limit": 1},
    "periodic.set": {
        "name": "page", "queue": "page", "schedule": "every 90s", "zone": "UTC", "data": b"x", "format": "bytes",
        "priority": 0, "missed": "once", "paused": True, "retries": 1, "backoff_ms": 1, "expires_after_ms": 1,
    },
    "flow.make": {
        "tasks": [{"queue": "page"}], "id": fresh_id(), "name": "page", "on_done": {"queue": "page", "data": b"x"},
    },
    "flow.get": {"id": ID, "limit": 1},
    "flow.list": {"state": "running", "after": ID, "limit": 1, "newest_first": True, "prefixes": ["mail"]},
    "flow.wait": {"id": ID, "wait_ms": 0},
    "flow.cancel": {"id": ID},
    "flow.requeue": {"id": ID},
    "timer.set": {
        "id": "page", "timeout": 600_000, "data": {"a": 1}, "replace": False, "request": "page",
        "callback": {"transport": "http", "uri": "http://127.0.0.1:9/", "method": "post"},
    },
    "timer.get": {"id": "page"},
    "timer.cancel": {"id": "page"},
    "timer.list": {"state": "ready", "after": ID, "limit": 1},
    "periodic.get": {"name": "page"},
    "periodic.remove": {"name": "page"},
    "job.submit": {"body": b"", "keep_ms": 1, "replace": False},
    "job.replay": {
        "id": "page", "new_id": "again", "from_start": True, "from_batch": None, "from_ms": None, "outputs": {},
        "same_outputs": True, "keep_ms": 1,
    },
    "job.letters": {
        "id": "page", "task": "work", "error": "KeyError", "letter": None, "count": False, "after": ID, "limit": 1,
        "newest_first": True,
    },
    "job.requeue": {"id": "page", "task": "work", "error": "KeyError", "new_id": "again", "limit": 1, "keep_ms": 1},
    "job.list": {"state": "running", "progress": False},
    "job.get": {"id": "page"},
    "job.wait": {"id": "page", "wait_ms": 0},
    "job.kill": {"id": "page"},
    "job.host": {"id": "page", "host": "page", "number": 0, "node": "", "events": [{"event": "up"}], "wait_ms": 0},
    "job.seal": {"id": "page", "input": "in"},
    "job.savepoint": {"id": "page", "name": "page", "request": "page", "wait_ms": 0},
    "job.savepoints": {"id": "page"},
    "job.savepoint_delete": {"name": "page"},
    "jobs.keep_savepoint": {
        "name": "page", "position": 1, "version": 1, "batch": 0, "offsets": b"x", "place": "/page", "size_bytes": 1,
    },
    "jobs.drop_savepoint": {"name": "page", "position": 1, "version": 1, "why": "page"},
    "jobs.prepare": {
        "job": "", "version": -1, "name": "page", "complete": [], "enqueue": [[fresh_id(), RUN[1]]],
        "deadline_ms": 1_000,
    },
    "jobs.commit": {
        "job": "", "version": -1, "batch": 0, "offsets": b"", "prepared": [], "name": "page commits", "complete": [],
        "keep_ms": 60_000,
    },
    "taskstore.update": {
        "client": 1, "adds": [["g", "x", 0]], "changes": [[5, "x", 0]], "deletes": [6], "depends": [7],
    },
    "taskstore.claim": {"client": 1, "group": "g", "duration_ms": 1_000, "depends": [7]},
    "taskstore.set_limits": {"task_bytes_max": 65_536, "bytes_max": 67_108_864},
    "taskstore.tasks": {"ids": [5]},
    "taskstore.group": {"group": "g", "limit": 1, "owned": True},
    "partition": {"partition": 1},
    "partition.force": {"partition": 1, "by": "me"},
    "leave": {"peer": "nobody", "permanent": False},
    "log": {"from": 0, "limit": 1},
    "log.raw": {"from": 0, "limit": 1, "wait_ms": 0},
    "origin": {"part": 0, "position": -1},
    "replica.part": {"part": 0, "position": 0},
    "submit": {"entry": "none", "args": {}},
    "extension": {"name": "none", "seen": 0},
}  # fmt: skip
"""Each argument of each method as it may be; what needs something that is not there is refused for that only."""

UNSEEN = {("dead.requeue", "ids"), ("dead.discard", "ids")}
"""Nil only beside a filter."""
NEEDED = {("periodic.set", "queue"), ("periodic.set", "schedule")}
"""Needed, but to pause or resume."""


def declared(member: Member) -> tuple[str, bool]:
    """An argument as the page would have it."""
    kinds = {
        inspect.IntType: "integer", inspect.FloatType: "number", inspect.BoolType: "boolean",
        inspect.StrType: "text", inspect.LiteralType: "text", inspect.BytesType: "bytes", inspect.ListType: "list",
        inspect.StructType: "map", inspect.DictType: "map", inspect.UnionType: "text or map",
    }  # fmt: skip
    kind = kinds[type(member.node)]
    return kind + " or nil" * member.nullable, member.required


TOLD = {one.name: {name: declared(member) for name, member in one.members.items()} for one in OPERATIONS}
"""Per method of the table: its arguments, their types, and whether they are needed."""


class Peer:
    """A peer that runs, and a connection with it."""

    def __init__(self, wire: Wire, methods: set[str]) -> None:
        self.wire = wire
        self.methods = methods

    def refused(self, method: str, args: dict[str, Any]) -> str | None:
        """The argument that a call is refused for as malformed, without what stands inside it; None if none is."""
        _, error = self.wire.answer(method, args)
        if error is None or error["code"] != "bad_request":
            return None
        return re.split(r"[\[.]", error["field"] or "")[0]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """One peer."""
    with running() as cluster:
        service = cluster.nodes[0].service
        assert service is not None
        with Wire(cluster.addresses[0]) as wire:
            wire.call("periodic.set", EXAMPLES["periodic.set"])
            yield Peer(wire, set(service._methods))


def test_every_method_is_told(peer: Peer) -> None:
    """Those of the table are those that a peer serves to clients, and each that has arguments has an example here."""
    assert set(TOLD) == peer.methods
    assert {name for name in TOLD if TOLD[name]} == set(EXAMPLES)


@pytest.mark.parametrize("method", sorted(TOLD))
def test_every_argument_is_told(peer: Peer, method: str) -> None:
    """No other argument is taken; an example here has each."""
    assert peer.wire.error(method, {"no such argument": 1})["field"] == "no such argument"
    assert set(EXAMPLES.get(method, {})) == set(TOLD[method])


@pytest.mark.parametrize("method", sorted(EXAMPLES))
def test_every_argument_has_the_type_that_is_told(peer: Peer, method: str) -> None:
    """A value of another type is refused by name; nil is taken exactly where it says so; what is not needed can go."""
    for name, (kind, needed) in TOLD[method].items():
        if (method, name) in UNSEEN:
            continue
        base = alone(method, name)
        assert peer.refused(method, base | {name: OTHER[kind.removesuffix(" or nil")]}) == name, f"{name} is {kind}"
        takes_nil = peer.refused(method, base | {name: None}) != name
        assert takes_nil == kind.endswith(" or nil"), f"{name}: nil"
        without = {other: value for other, value in base.items() if other != name}
        needed = needed or (method, name) in NEEDED
        assert (peer.refused(method, without) == name) == needed, f"{name} is {'needed' if needed else 'not needed'}"


def alone(method: str, name: str) -> dict[str, Any]:
    """The method's example, without arguments that exclude the one in question."""
    left_out = {"dead.requeue": {"ids": {"queue", "where"}}, "dead.discard": {"ids": {"queue", "where"}}}
    excluded = left_out.get(method, {}).get(name, {"ids"} if method in left_out else set())
    return {other: value for other, value in EXAMPLES[method].items() if other == name or other not in excluded}


def rows(after: str) -> dict[str, str]:
    """Return first and second column of the table after a line of heads."""
    table = PAGE.split(f"\n{after} ", 1)[1].split("\n====", 2)[1]
    return dict(re.findall(r"^``(\w+)`` +(\S+)", table, re.MULTILINE))


def test_limits_are_those_of_the_code() -> None:
    """Every figure of the table, and those of runs."""
    for name, value in rows("limit").items():
        known = getattr(protocol, name, None) or getattr(server, name)
        assert int(value) == known, name
    assert f"{RUN_BYTES_MAX:,}" in PAGE and f"{TASK_BYTES_MAX:,}" in PAGE
    assert f'["onyxq", {protocol.VERSION}, {{...}}]' in PAGE
    assert protocol.CANCEL in PAGE and protocol.PING in PAGE


def test_the_temporary_codes_are_those_after_which_clients_repeat() -> None:
    """A client that gave up after one of them would lose what a repeat saves. A damaged log ends its peer."""
    text = PAGE.split("codes are temporary", 1)[1].split("\n\n", 1)[0]
    repeated = {code for code, error in BY_CODE.items() if issubclass(error, RETRYABLE)}
    assert set(re.findall("``([a-z_]+)``", text)) == repeated - {"log_damaged"}


def test_the_hello_has_the_members_that_are_told() -> None:
    """All of `Hello`, no more."""
    text = PAGE.split("\nHello\n", 1)[1].split("\nErrors\n", 1)[0]
    assert re.findall(r"^:(\w+):", text, re.MULTILINE) == list(fields_dict(protocol.Hello))


def test_the_header_has_the_members_that_are_told() -> None:
    """What a task's header may say."""
    assert set(rows("header")) == set(members(TaskHeader))


def test_the_partition_of_a_key_is_computed_as_told() -> None:
    """The rule in words, written here once more."""
    from hashlib import blake2b

    digest = blake2b(b"mail\0customer 7", digest_size=16).digest()
    assert int.from_bytes(digest[:8], "big") % 64 == partition_of_keys("mail", "customer 7", 64)


def test_a_ping_is_answered_and_what_is_withdrawn_is_not(peer: Peer) -> None:
    """The messages beside requests."""
    peer.wire.send([70_001, "$ping", {}])
    assert peer.wire.receive() == [70_001, 0, None]
    peer.wire.send([70_002, "claim", {"queues": ["nothing comes here"], "wait_ms": 600_000}])
    peer.wire.send([0, "$cancel", {"id": 70_002}])
    peer.wire.send([70_003, "$ping", {}])
    assert peer.wire.receive() == [70_003, 0, None]


def test_the_client_that_is_shown_works(capsys: pytest.CaptureFixture[str]) -> None:
    """It is run as it stands, only the address is another."""
    (program,) = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE)
    code = textwrap.dedent(program)
    with running() as cluster:
        host, port = cluster.addresses[0].rsplit(":", 1)
        found: dict[str, Any] = {}
        here = code.replace('"127.0.0.1", 7400', f'"{host}", {port}')
        assert here != code
        exec(compile(here, "protocol.rst", "exec"), found)
        found["connection"].socket.close()
    assert capsys.readouterr().out.split() == ["True", "b'dear", "ann'", "[]", "completed", "b'sent'"]
