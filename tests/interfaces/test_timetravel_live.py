"""Time travel against a cluster in this process: dumps, replays, explanations, subscriptions."""

from __future__ import annotations

import base64
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import evolve

from onyxq import Client, api
from onyxq.core import snapshot
from onyxq.core.diff import patched, tree
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest, Conflict, NotFound, OnyxqError, Unavailable
from onyxq.history.dump import read
from onyxq.history.explain import Told, lines, merged
from onyxq.history.following import Event, SetReplica, ask, drive, origin, records
from onyxq.history.replay import replica_at, steps
from onyxq.interfaces.local_cluster import LOCAL, LocalCluster
from onyxq.node import log_view
from tests.interfaces.timetravel_world import PATIENCE_MS, PATIENCE_S, Line, World, started


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[LocalCluster, BlockingPortal]]:
    """Three peers on one embedded log."""
    with started(peers=3, http="127.0.0.1:0", partitions=8) as found:
        yield found


@pytest.fixture
def world(running: tuple[LocalCluster, BlockingPortal]) -> Iterator[World]:
    """The module's cluster, and a queue of the test's own."""
    cluster, portal = running
    with Client(cluster.addresses[0]) as client:
        yield World(cluster, portal, client)


@pytest.fixture
def line(world: World, capsys: pytest.CaptureFixture[str]) -> Line:
    """Commands against the cluster."""
    return Line(world, capsys)


# --- digests, dumps and replays -----------------------------------------------------------


def test_peers_at_one_position_have_one_digest(world: World) -> None:
    """Over the wire and over HTTP."""
    world.story()
    found = world.settled()
    assert len({one["digest"] for one in found}) == 1
    assert len(found) == 3
    answers = [httpx.get(f"http://{one}/v1/replica", trust_env=False).json() for one in world.cluster.http_addresses]
    assert all(len(one["digest"]) == 32 for one in answers)


def test_a_dump_replays_to_the_digest_that_peers_report(world: World, line: Line, tmp_path: Path) -> None:
    """At the position of each, from the beginning and from an origin."""
    for name in ("beginning", "origin"):
        world.story()
        reported = world.settled()
        file = str(tmp_path / name)
        done = line.json("log", "dump", file)
        assert done["last"] >= reported[0]["position"]
        for one in reported:
            found = line.json("log", "replay", file, "--until", str(one["position"]), connect=False)
            assert (found["position"], found["digest"]) == (one["position"], one["digest"])
            assert found["violations"] == [] and found["invariants_checked"] > 0
        if name == "beginning":
            world.collect()
    assert done["origin"] is not None and done["first"] == done["origin"] + 1
    said = line.text("log", "replay", file, connect=False)
    assert "digest" in said and "grant_claims" in said


def test_a_dump_from_the_beginning_of_a_trimmed_log_is_refused(world: World, line: Line, tmp_path: Path) -> None:
    """The error says where the log starts, and nothing is written."""
    position = world.collect()
    line.text("log", "dump", str(tmp_path / "a"), "--from-beginning", code=3)
    assert str(position) in line.error and "--archive" in line.error
    assert list(tmp_path.iterdir()) == []


def test_the_replica_of_a_past_position_is_shown(world: World, line: Line, tmp_path: Path) -> None:
    """With the digest that the peer had there; also from a file, and only a part of it."""
    known = []
    for _ in range(3):
        world.story()
        known.append(world.settled()[0])
    for one in known:
        found = line.json("replica", "show", "--at", str(one["position"]))
        assert (found["position"], found["digest"]) == (one["position"], one["digest"])
        assert found["replica"]["position"] == one["position"]
    line.json("log", "dump", str(tmp_path / "a"))
    at = str(known[1]["position"])
    assert line.json("replica", "show", "--at", at, "--file", str(tmp_path / "a"))["digest"] == known[1]["digest"]
    assert line.json("replica", "show", "--path", "partitions/3")["replica"]["epoch"] >= 1
    assert "cluster\n  name: main" in line.text("replica", "show")
    line.text("replica", "show", "--path", "partitions/99", code=3)


def test_positions_that_are_not_there_are_refused(world: World, line: Line, tmp_path: Path) -> None:
    """A position is refused if it is not written yet, trimmed, or after the end of a file."""
    file = str(tmp_path / "a")
    last = line.json("log", "dump", file)["last"]
    assert line.json("replica", "show", "--at", str(last), "--file", file)["position"] == last
    line.text("replica", "show", "--at", str(last + 1), "--file", file, code=3)
    assert f"the file ends at position {last}, before {last + 1}" in line.error
    position = world.collect()
    line.text("replica", "show", "--at", str(1 << 40), code=3)
    assert "does not exist yet" in line.error
    line.text("replica", "show", "--at", str(position - 1), code=3)
    assert "trimmed" in line.error
    assert line.json("replica", "show", "--at", str(position))["position"] == position


# --- tail, show, explain ------------------------------------------------------------------


def test_tail_tells_the_newest_records_and_ends(world: World, line: Line) -> None:
    """In words with verdicts; as JSON lines with both."""
    _, tokens = world.story()
    said = line.text("log", "tail", "--limit", "100")
    assert "grant_claims (applied): partition" in said and "to worker w2" in said
    lines = [json.loads(text) for text in line.text("log", "tail", "--limit", "4", "--json").splitlines()]
    assert len(lines) == 4 and all({"position", "at_ms", "peer", "entries"} <= one.keys() for one in lines)
    entries = [entry for one in lines for entry in one["entries"]]
    assert all({"entry", "args", "verdict", "words"} <= entry.keys() for entry in entries)
    assert lines[-1]["position"] >= tokens[-1]


def test_tail_steps_what_the_peer_does_not_remember(world: World, line: Line) -> None:
    """From the origin on, with the same verdicts; what is trimmed is said."""
    start = world.collect()
    _, tokens = world.story()
    before = [json.loads(text) for text in line.text("log", "tail", "--from", str(start + 1), "--json").splitlines()]
    for node in world.cluster.nodes:
        assert node.node is not None
        world.portal.call(node.node.recent.clear)
    after = [json.loads(text) for text in line.text("log", "tail", "--from", str(start + 1), "--json").splitlines()]
    assert after[: len(before)] == before
    assert line.json("log", "show", str(tokens[0]))["position"] == tokens[0]
    line.text("log", "tail", "--from", "0")
    assert f"records 0 to {start} are trimmed" in line.error
    line.text("log", "show", "0", code=3)


def test_a_task_is_explained(world: World, line: Line) -> None:
    """Every entry that touched it, with times, workers and tokens."""
    task_id, (first, second) = world.story()
    found = line.json("task", "explain", task_id)
    story = [(one["entry"], one["token"]) for one in found["events"] if one["source"] == "log"]
    assert story == [
        ("grant_claims", first),
        ("renew_claims", first),
        ("release_claims", first),
        ("grant_claims", second),
        ("release_claims", second),
    ]
    assert [one["worker"] for one in found["events"] if one["entry"] == "grant_claims"] == ["w1", "w2"]
    assert all(one["peer"] and one["at_ms"] > 1_700_000_000_000 for one in found["events"] if one["source"] == "log")
    said = line.text("task", "explain", task_id)
    for words in ("made for queue", "to worker w1", "no such host", "wrote update 0", "completed under token"):
        assert words in said, said
    line.text("task", "explain", "00" * 20, code=3)


def test_only_neighbouring_updates_of_one_claim_share_a_line() -> None:
    """The updates of another claim, and those after another event, have their own line."""

    def told(at_ms: int, token: int, update: int | None) -> Told:
        return Told(at_ms, None, 0, "store", "", "", "", token, "", f"{token}: {update}", update)

    events = [told(1, 5, 0), told(2, 5, 1), told(2, 5, 2), told(3, 5, None), told(3, 7, 0), told(4, 7, None)]
    shown = [(one.first.at_ms, one.last.at_ms, one.words) for one in lines([*events, told(5, 7, 1), told(6, 7, 2)])]
    joined = [(1, 2, "worker wrote updates 0 to 2 under token 5"), (5, 6, "worker wrote updates 1 to 2 under token 7")]
    assert shown == [joined[0], (3, 3, "5: None"), (3, 3, "7: 0"), (4, 4, "7: None"), joined[1]]


def test_what_a_worker_wrote_stands_between_the_grant_and_the_end_of_its_claim() -> None:
    """The clocks of the log's server and of the leader may differ, or show the same millisecond."""

    def entry(at_ms: int, position: int, name: str, token: int) -> Told:
        return Told(at_ms, position, 0, "log", name, "applied", "", token, "", name, None)

    def stored(at_ms: int, token: int, update: int | None) -> Told:
        return Told(at_ms, None, 0, "store", "", "", "", token, "", f"update {update}", update)

    made = Told(9, None, 0, "id", "", "", "", None, "", "made", None)
    first = [entry(5, 3, "grant_claims", 3), stored(4, 3, 0), stored(5, 3, 1), entry(5, 4, "release_claims", 3)]
    other = [
        entry(6, 7, "grant_limited_claims", 7),
        stored(7, 7, 0),
        stored(9, 7, None),
        entry(8, 9, "expire_claims", 7),
    ]
    wanted = [made, *first, *other]
    for seed in range(50):
        assert merged(random.Random(seed).sample(wanted, len(wanted))) == wanted


def test_neighbouring_updates_of_a_claim_are_one_line(world: World, line: Line) -> None:
    """The updates of another claim have their own line, and JSON has each update."""
    task_id = world.client.enqueue(world.queue, b"1")
    tokens = []
    for count in (3, 2):
        (claim,) = world.client.claim([world.queue], wait_ms=PATIENCE_MS, worker="w1")
        for number in range(count):
            world.client.update(claim, b"%d" % number)
        world.client.release(claim)
        tokens.append(claim.token)
    said = line.text("task", "explain", task_id.hex())
    joined = [("2", str(tokens[0])), ("1", str(tokens[1]))]
    assert re.findall(r"worker wrote updates 0 to (\d) under token (\d+)\b", said) == joined
    assert said.count("wrote update") == 2
    events = line.json("task", "explain", task_id.hex())["events"]
    assert [(one["token"], one["update"]) for one in events if one["update"] is not None] == [
        *((tokens[0], number) for number in range(3)),
        *((tokens[1], number) for number in range(2)),
    ]


def test_a_task_is_explained_when_the_log_was_trimmed(world: World, line: Line) -> None:
    """From the store's history: grants and failures, and the note that there is no more."""
    task_id, (first, second) = world.story()
    position = world.collect()
    found = line.json("task", "explain", task_id)
    assert found["log_from"] == position + 1
    assert [(one["entry"], one["token"]) for one in found["events"] if one["source"] == "history"] == [
        ("grant_claims", first),
        ("release_claims", first),
        ("grant_claims", second),
    ]
    said = line.text("task", "explain", task_id)
    assert "granted to worker w2" in said and "no such host" in said
    assert f"up to {position} are trimmed" in line.error


# --- the methods ---------------------------------------------------------------------------


def test_raw_records_come_by_the_page(world: World) -> None:
    """As few as asked for, from where they were left off, equal in memory and from the log."""
    world.collect()
    world.story()
    client = world.client
    end = client.call("cluster", {})["position"]
    start = ask(origin(), client.call)
    begin = snapshot.unpack(start)
    whole = list(drive(records(begin.position + 1, end), client.call))
    assert [one.position for one in whole] == list(range(begin.position + 1, end + 1))
    pages = []
    at = begin.position + 1
    while at <= end:
        page = client.call("log.raw", {"from": at, "limit": 2})
        pages += page["records"]
        at = page["next"]
    assert pages[: len(whole)] == [[one.position, one.ctime_ms, one.data] for one in whole]
    memory = world.cluster.nodes[0].node
    assert memory is not None
    world.portal.call(memory.records.clear)
    assert list(drive(records(begin.position + 1, end), client.call)) == whole
    *_, last = steps(begin, whole)
    assert snapshot.digest(last.replica) == snapshot.digest(replica_now(client, end))


def replica_now(client: Client, position: int) -> Any:
    """The replica at a position, put together from the origin."""
    begin = snapshot.unpack(ask(origin(), client.call))
    *_, last = steps(begin, drive(records(begin.position + 1, position), client.call))
    return last.replica


def test_raw_records_can_be_waited_for(world: World) -> None:
    """An answer comes with the next record, or empty when the time is over."""
    end = world.client.call("cluster", {})["position"]
    assert world.client.call("log.raw", {"from": end + 1_000, "wait_ms": 20})["records"] == []
    found: list[Any] = []

    def wait() -> None:
        with Client(world.address) as client:
            found.append(client.call("log.raw", {"from": end + 1, "wait_ms": 20_000}))

    thread = threading.Thread(target=wait)
    thread.start()
    world.story()
    thread.join(PATIENCE_S)
    assert found[0]["records"][0][0] == end + 1


def test_large_answers_come_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An origin and a replica larger than an answer; a part of an older one is refused."""
    monkeypatch.setattr(log_view, "PART_BYTES", 100)
    position = world.collect()
    assert snapshot.unpack(ask(origin(), world.client.call)).position == position
    one = world.client.call("replica.part", {"part": 0})
    assert one["parts"] > 3 and len(one["data"]) == 100
    with pytest.raises(Conflict):
        world.client.call("origin", {"part": 1, "position": position - 1})


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("log.raw", {"from": -1}),
        ("log.raw", {"from": 0, "limit": 0}),
        ("log.raw", {"from": 0, "limit": 1_001}),
        ("log.raw", {"from": "0"}),
        ("log.raw", {"from": 0, "wait_ms": -1}),
        ("log.raw", {"until": 3}),
        ("origin", {"part": -1}),
        ("origin", {"part": None}),
        ("replica.part", {"part": "0"}),
        ("replica", {"until": 3}),
        ("task_history", {"id": b"short"}),
    ],
)
def test_bad_arguments_are_named(world: World, method: str, args: dict[str, Any]) -> None:
    """As of every method."""
    with pytest.raises(BadRequest) as caught:
        world.client.call(method, args)
    assert caught.value.field in {*args, "until"}


def test_the_log_is_served_over_http(world: World) -> None:
    """Records as stored, the origin, and a task's history."""
    task_id, tokens = world.story()
    position = world.collect()
    base = f"http://{world.cluster.http_addresses[0]}"
    with httpx.Client(base_url=base, trust_env=False, timeout=PATIENCE_S) as http:
        part = http.get("/v1/origin").json()
        assert snapshot.unpack(base64.b64decode(part["data_base64"])).position == position
        assert http.get("/v1/origin?part=1&position=0").status_code == 409
        world.story()
        page = http.get(f"/v1/log/raw?from={position + 1}&limit=2").json()
        assert [one["position"] for one in page["records"]] == [position + 1, position + 2]
        assert base64.b64decode(page["records"][0]["data_base64"])
        assert http.get("/v1/log/raw?from=0").json()["trimmed"] == position
        assert http.get("/v1/log/raw?limit=0").status_code == 400
        history = http.get(f"/v1/tasks/{task_id}/history").json()
        assert [row["token"] for row in history["history"]] == [tokens[0], tokens[0], tokens[1]]
        assert history["completion"]["outcome"] == "completed"


# --- subscriptions --------------------------------------------------------------------------


def until(events: Iterator[Event], holds: Callable[[Event], bool]) -> list[Event]:
    """Return events up to the first one for which a condition holds."""
    out = []
    for event in events:
        out.append(event)
        if holds(event):
            return out
    raise AssertionError("the subscription ended")


def completed(token: int) -> Callable[[Event], bool]:
    """Whether an event ends the claim of a token as completed."""
    return lambda event: (
        event.entry.name == "release_claims"
        and any(one.token == token and one.event == 4 for one in event.entry.args.releases)
    )


def test_a_subscription_tells_every_entry_with_its_effect(world: World) -> None:
    """From a position on; all differences together lead from the replica before to that after."""
    start = world.collect() + 1
    _, tokens = world.story()
    events = until(api.subscribe(start, world.address), completed(tokens[1]))
    before = tree(snapshot.unpack(ask(origin(), world.client.call)))
    for position, entry, verdict, changes in events:
        assert position >= start and entry.name and verdict == "applied" and changes
        before = patched(before, changes)
    assert before == tree(replica_now(world.client, events[-1].position))
    granted = [str(event.entry) for event in events if event.entry.name == "grant_claims"]
    assert "to worker w1" in granted[0] and "to worker w2" in granted[1]


def test_a_subscription_starts_now(world: World) -> None:
    """Without a start, it has only later entries."""
    end = world.settled()[0]["position"]
    events = api.subscribe(connect=world.address)
    found: list[Event] = []
    started = threading.Event()

    def read_on() -> None:
        started.set()
        found.extend(until(events, lambda event: event.entry.name == "release_claims"))

    thread = threading.Thread(target=read_on)
    thread.start()
    started.wait(PATIENCE_S)
    while thread.is_alive():
        world.story()
        thread.join(0.2)
    assert found and all(event.position > end for event in found)


def test_a_subscription_goes_on_across_gc(world: World) -> None:
    """What was trimmed before it was read comes as one change to the origin's replica."""
    start = world.collect() + 1
    _, tokens = world.story()
    events = api.subscribe(start, world.address)
    seen = until(events, completed(tokens[1]))
    here = tree(replica_now(world.client, seen[-1].position))
    for _ in range(3):
        world.story()
    position = world.collect()
    _, tokens = world.story()
    later = until(events, completed(tokens[1]))
    first = later[0]
    assert (first.entry.name, first.position, first.verdict) == ("set_replica", position, "applied")
    assert first.entry.args == SetReplica(position) and "snapshot" in str(first.entry)
    assert later[1].position > position
    for event in later:
        here = patched(here, event.diff)
    assert here == tree(replica_now(world.client, later[-1].position))


def test_a_subscription_from_before_the_origin_begins_with_it(world: World) -> None:
    """Its difference is that to nothing."""
    position = world.collect()
    first = next(api.subscribe(0, world.address))
    assert (first.entry.name, first.position) == ("set_replica", position)
    assert patched(tree(EMPTY), first.diff) == tree(snapshot.unpack(ask(origin(), world.client.call)))


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_subscription_can_be_asynchronous(world: World, backend: str) -> None:
    """The same events on trio and asyncio."""
    start = world.collect() + 1
    _, tokens = world.story()
    expected = until(api.subscribe(start, world.address), completed(tokens[1]))

    async def read_on() -> list[Event]:
        out = []
        with anyio.fail_after(PATIENCE_S):
            async with api.subscribe_async(start, world.address) as events:
                async for event in events:
                    out.append(event)
                    if completed(tokens[1])(event):
                        break
        return out

    assert anyio.run(read_on, backend=backend) == expected


def test_nobody_to_subscribe_to_is_an_error() -> None:
    """At the start; both ways of naming a cluster at once as well."""
    with pytest.raises(Unavailable):
        next(api.subscribe(connect="127.0.0.1:1"))
    with pytest.raises(BadRequest):
        api.gc("127.0.0.1:1", zookeeper="127.0.0.1:2")


def test_a_subscription_survives_its_peer() -> None:
    """It continues at another peer, without a gap or a repeat."""
    with start_blocking_portal("trio") as portal:
        made = LocalCluster(peers=3, config=evolve(LOCAL, partitions=4))
        with portal.wrap_async_context_manager(made) as cluster:
            first, *others = cluster.addresses
            events = api.subscribe(0, first)
            seen = until(events, lambda event: event.entry.name == "accept_join_cluster")
            portal.call(cluster.stop_peer, 0)
            with Client(others) as client:
                client.enqueue("q", b"x")
                (claim,) = client.claim("q", wait_ms=PATIENCE_MS)
                client.complete(claim)
            seen += until(events, completed(claim.token))
            assert any(event.entry.name == "leave_cluster" for event in seen)
            places = [(event.position, event.entry.index) for event in seen]
            assert places == sorted(set(places))
            here = tree(EMPTY)
            for event in seen:
                here = patched(here, event.diff)
            assert here["ring"]["members"].keys() == {node.addresses.peer for node in made.nodes[1:] if node.addresses}


def test_a_dump_file_serves_as_the_log(world: World, line: Line, tmp_path: Path) -> None:
    """What `replica show --file` gives is what the library gives."""
    world.story()
    file = tmp_path / "a"
    done = line.json("log", "dump", str(file))
    found = replica_at(read(file))
    assert found.position == done["last"]
    assert line.json("replica", "show", "--file", str(file))["digest"] == snapshot.digest(found)
    with pytest.raises(NotFound):
        replica_at(read(file), -5)


@pytest.mark.parametrize("error", [Unavailable("no majority"), NotFound("it is purged")], ids=["away", "purged"])
def test_a_task_is_explained_from_the_log_alone(
    error: OnyxqError, world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This works while its partition cannot be read, and once it is purged."""

    async def nobody(args: dict[str, Any]) -> Any:
        raise error

    task_id, _ = world.story()
    for node in world.cluster.nodes:
        assert node.service is not None
        monkeypatch.setitem(node.service._methods, "task_history", nobody)
    found = line.json("task", "explain", task_id)
    assert found["task"] is None and {one["source"] for one in found["events"]} == {"log"}
    assert error.message in line.error
