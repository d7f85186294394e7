"""Order, times, dependencies, dead letters, settings and periodic tasks from a user's view, on a real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from onyxq import Client, Step
from onyxq.errors import BadRequest, Conflict, KeyTaken, NotFound
from tests.interfaces.live_world import Line, Live

WAIT_MS = 10_000


def worked(client: Client, queue: str, tasks: int) -> list[bytes]:
    """Return payloads in the order in which one worker completed them."""
    seen: list[bytes] = []
    while len(seen) < tasks:
        claims = client.claim(queue, max=100, wait_ms=WAIT_MS)
        assert len(claims), f"only {seen}"
        seen += [claim.data for claim in claims]
        client.complete(claims)
    return seen


def died(client: Client, queue: str, error: str, **options: Any) -> bytes:
    """Return a task that has failed for good."""
    task_id = client.enqueue(queue, b"x", retries=0, **options)
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    client.fail(claim, error)
    return task_id


def until(condition: Callable[[], bool]) -> None:
    """Wait until the cluster has kept a promise."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_tasks_of_a_key_run_one_after_the_other(client: Client, queue: str) -> None:
    """They run in the order of enqueues, one at a time, and others are not delayed."""
    payloads = [b"%d" % n for n in range(20)]
    ids = client.enqueue_many(queue, payloads, ordering_key="k")
    client.enqueue(queue, b"other", ordering_key="other")
    claims = client.claim(queue, max=100, wait_ms=WAIT_MS)
    got = {claim.data for claim in claims}
    if len(got) < 2:
        got |= {claim.data for claim in client.claim(queue, wait_ms=WAIT_MS)}
    assert got == {b"0", b"other"}
    assert [client.get(one).state for one in ids[:2]] == ["claimed", "waiting"]
    client.complete([claim for claim in claims if claim.ordering_key == "k"])
    assert worked(client, queue, 19) == payloads[1:]


def test_tasks_of_a_key_run_in_the_order_of_their_times(client: Client, queue: str) -> None:
    """A task that is due earlier comes first, whenever it was enqueued."""
    now_ms = time.time_ns() // 1_000_000
    client.enqueue(queue, b"late", ordering_key="k", at_ms=now_ms + 700)
    client.enqueue(queue, b"soon", ordering_key="k", at_ms=now_ms + 400)
    client.enqueue(queue, b"now", ordering_key="k")
    assert worked(client, queue, 3) == [b"now", b"soon", b"late"]


def test_of_a_unique_key_there_is_one_task(client: Client, queue: str) -> None:
    """A repeat replaces the data before the first claim, and changes nothing while it runs; then the key is free."""
    first = client.enqueue(queue, b"1", unique_key="u")
    assert client.enqueue(queue, b"2", unique_key="u") == first
    assert client.get(first).data == b"2"
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    assert client.enqueue(queue, b"3", unique_key="u") == first
    client.complete(claim)
    assert claim.data == b"2"
    assert client.count(queue)[queue]["total"] == 1
    second = client.enqueue(queue, b"4", unique_key="u", unique_period="365d")
    assert second != first
    with pytest.raises(KeyTaken) as taken:
        client.enqueue(queue, b"5", unique_key="u", unique_period="365d", on_conflict="refuse")
    assert (taken.value.existing, taken.value.field) == (second, "unique_key")


def test_a_flow_runs_in_its_order_and_hands_results_on(client: Client, queue: str) -> None:
    """A step is claimed once its dependencies are done, and reads their results."""
    words = client.group(*(Step(f"{queue}-map", b"%d" % n) for n in range(3)))
    flow = client.chain((f"{queue}-split", b"in"), words, (f"{queue}-join", b"")).enqueue()
    assert [client.get(one).state for one in flow.ids] == ["ready", "waiting", "waiting", "waiting", "waiting"]
    for name, tasks in (("split", 1), ("map", 3), ("join", 1)):
        done = 0
        while done < tasks:
            for claim in client.claim(f"{queue}-{name}", max=10, wait_ms=WAIT_MS):
                given = client.results(claim.depends)
                client.complete(claim, b"+".join([claim.data, *(one or b"?" for one in given)]))
                done += 1
    assert client.results(flow.last) == [b"+0+in+1+in+2+in"]


def test_what_depends_on_a_failed_task_meets_its_fate(client: Client, queue: str) -> None:
    """It fails with the reason, is cancelled, or runs, by its policy."""
    dead = died(client, queue, "no luck")
    fates = {fate: client.enqueue(queue, b"", depends=[dead], on_dependency_failed=fate) for fate in ("fail", "cancel")}
    run_id = client.enqueue(queue, b"run", depends=[dead], on_dependency_failed="run")
    until(lambda: client.get(fates["fail"]).state == "failed" and client.get(fates["cancel"]).state == "cancelled")
    assert dead.hex() in (client.get(fates["fail"]).error or "")
    assert worked(client, queue, 1) == [b"run"] and client.get(run_id).depends == (dead,)


def test_unknown_dependencies_and_times_long_gone_are_refused(live: Live, client: Client, queue: str) -> None:
    """Every interface names the field; nothing is stored."""
    unknown = bytes(20)
    for options, field in (({"depends": [unknown]}, "depends"), ({"at_ms": 5}, "at_ms")):
        with pytest.raises(BadRequest) as refused:
            client.enqueue(queue, b"", **options)
        assert refused.value.field == field
    for said, field in (({"depends": [unknown.hex()]}, "tasks[0].depends"), ({"at_ms": 5}, "tasks[0].at_ms")):
        answer = live.http.post("/v1/tasks", json={"tasks": [{"queue": queue, **said}]})
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert client.count(queue)[queue]["total"] == 0


def test_a_task_that_nobody_began_in_time_fails(client: Client, queue: str) -> None:
    """Its error says so."""
    task_id = client.enqueue(queue, b"", expires_ms=time.time_ns() // 1_000_000 + 300)
    until(lambda: client.get(task_id).state == "failed")
    assert (client.get(task_id).error or "").startswith("expired")


def test_a_paused_queue_gives_nothing_until_it_is_resumed(client: Client, queue: str) -> None:
    """It shows who paused it and why; waiting claimers are woken."""
    client.pause(queue, by="ann", why="relay down")
    client.enqueue(queue, b"x")
    assert not client.claim(queue, wait_ms=200)
    settings = client.queue(queue)["settings"]
    assert (settings["paused"], settings["paused_by"], settings["paused_why"]) == (True, "ann", "relay down")
    client.resume(queue)
    assert worked(client, queue, 1) == [b"x"]


def test_a_queue_hands_out_no_more_than_it_allows(client: Client, queue: str) -> None:
    """Concurrency counts all claims of the cluster."""
    client.set_queue(queue, concurrency=2)
    client.enqueue_many(queue, [b""] * 5)
    held = client.claim(queue, max=5, wait_ms=WAIT_MS)
    assert len(held) == 2
    assert not client.claim(queue, wait_ms=100)
    client.complete(held)
    assert len(client.claim(queue, max=5, wait_ms=WAIT_MS)) == 2


def test_retries_are_as_the_queue_says_unless_the_task_does(client: Client, queue: str) -> None:
    """Only settings of the task have precedence."""
    client.set_queue(queue, retries=0)
    died_at_once, tries_again = client.enqueue(queue, b"a"), client.enqueue(queue, b"b", retries=5)
    for _ in range(2):
        (claim,) = client.claim(queue, wait_ms=WAIT_MS)
        client.fail(claim, "no", retry_in_ms=60_000)
    assert (client.get(died_at_once).state, client.get(tries_again).state) == ("failed", "scheduled")
    assert (client.get(died_at_once).retries, client.get(tries_again).retries) == (0, 5)


def test_a_dead_letter_stops_its_key_if_the_queue_says_so(client: Client, queue: str) -> None:
    """It stops until a discard; meanwhile other keys continue."""
    client.set_queue(queue, on_dead="stops")
    dead = died(client, queue, "poison", ordering_key="k")
    client.enqueue(queue, b"behind", ordering_key="k")
    client.enqueue(queue, b"other", ordering_key="other")
    assert worked(client, queue, 1) == [b"other"]
    assert not client.claim(queue, wait_ms=200)
    assert client.discard_dead([dead]) == 1
    assert worked(client, queue, 1) == [b"behind"]
    assert client.get(dead).state == "cancelled"


def test_dead_letters_are_found_by_queue_and_error_and_run_again(client: Client, queue: str) -> None:
    """With all their retries."""
    ids = [died(client, queue, error) for error in ("no host", "no user", "no host")]
    assert [task.id for task in client.dead(queue).tasks] == sorted(ids)
    assert [task.id for task in client.dead(queue, where="user").tasks] == [ids[1]]
    assert client.requeue_dead(queue=queue, where="host") == 2
    assert len(worked(client, queue, 2)) == 2
    assert [client.get(one).state for one in ids] == ["completed", "failed", "completed"]
    with pytest.raises(Conflict):
        client.requeue_dead([ids[0]])


def test_a_request_tells_whether_it_left_dead_letters(client: Client, queue: str) -> None:
    """It changes a limited number."""
    for _ in range(3):
        died(client, queue, "no host")
    assert client.call("dead.requeue", {"queue": queue, "limit": 2}) == {"count": 2, "more": True}
    assert client.call("dead.requeue", {"queue": queue, "limit": 2}) == {"count": 1}
    assert len(worked(client, queue, 3)) == 3


def test_lists_go_on_over_all_tasks(client: Client, queue: str) -> None:
    """They continue page after page, in id order."""
    ids = client.enqueue_many(queue, [b""] * 1_100)
    assert [task.id for task in client.list_all(queue)] == sorted(ids)


def test_a_periodic_task_is_enqueued_until_it_is_removed(client: Client, queue: str) -> None:
    """Once each time."""
    made = client.set_periodic(f"tick {queue}", queue, "every 1s", b"tick")
    assert (made["paused"], made["missed"], made["zone"]) == (False, "once", "UTC")
    assert worked(client, queue, 2) == [b"tick", b"tick"]
    assert client.pause_periodic(made["name"])["paused"]
    assert made["name"] in [one["name"] for one in client.periodics()]
    client.remove_periodic(made["name"])
    with pytest.raises(NotFound):
        client.periodic(made["name"])


def test_the_command_line_enqueues_with_keys_and_dependencies(line: Line, client: Client, queue: str) -> None:
    """It prints the id of the current task."""
    first = line.json("task", "enqueue", queue, "--data", "1", "--unique-key", "u")
    again = line.json("task", "enqueue", queue, "--data", "2", "--unique-key", "u")
    assert (first["unique"], again["unique"], again["id"]) == ("new", "replaced", first["id"])
    after = line.json("task", "enqueue", queue, "--after", first["id"], "--retries", "none", "--expires", "1h")
    task = client.get(after["id"])
    assert (task.state, task.retries, [one.hex() for one in task.depends]) == ("waiting", None, [first["id"]])
    assert line.json("task", "get", after["id"])["depends"] == [first["id"]]
    ordered = [line.json("task", "enqueue", queue, "--ordering-key", "k")["id"] for _ in "ab"]
    assert [client.get(one).state for one in ordered] == ["ready", "waiting"]


def test_the_command_line_chooses_what_a_repeat_of_a_key_does(line: Line, client: Client, queue: str) -> None:
    """It says whether the task that holds the key was changed; a refusal names that task and has its own exit code."""
    typed = ("task", "enqueue", queue, "--unique-key", "u", "--unique-period", "365d")
    first = line.json(*typed, "--data", "1")
    assert line.json(*typed, "--data", "2", "--on-conflict", "keep")["unique"] == "exists"
    assert line.json(*typed, "--on-conflict", "extend", "--delay", "1s")["unique"] == "extended"
    assert "its due time was moved" in line.said.err
    assert line.code(*typed, "--data", "3", "--on-conflict", "refuse") == KeyTaken.exit_code
    assert first["id"] in line.said.err
    task = client.get(first["id"])
    assert (task.data, task.unique_until, task.unique_period_ms) == (b"1", "purged", 365 * 86_400_000)
    early = ("task", "enqueue", queue, "--unique-key", "v", "--unique-until", "started")
    second = line.json(*early, "--priority", "1")
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    assert claim.id.hex() == second["id"] and line.json(*early)["unique"] == "new"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (["--ordering-key", ""], "ordering_key"),
        (["--unique-until", "started"], "unique_until"),
        (["--on-conflict", "keep"], "on_conflict"),
        (["--unique-key", "u", "--unique-period", "often"], "unique_period"),
        (["--unique-key", "u", "--unique-period", "0s"], "unique_period"),
        (["--after", "zz"], "after"),
        (["--after", "00" * 20], "after"),
        (["--at", "2001-01-01"], "at"),
        (["--retries", "many"], "retries"),
        (["--backoff", "soon"], "backoff"),
        (["--expires", "soon"], "expires"),
    ],
)
def test_bad_options_are_named(line: Line, client: Client, queue: str, typed: list[str], field: str) -> None:
    """They are named as on the command line, with the exit code of a usage error; nothing is stored."""
    assert line.code("task", "enqueue", queue, *typed) == 2
    assert field in line.said.err.splitlines()[0]
    assert client.count(queue)[queue]["total"] == 0


def test_the_command_line_pauses_resumes_and_sets_queues(line: Line, queue: str) -> None:
    """It shows them with their settings, flat as over HTTP."""
    paused = line.json("queue", "pause", queue, "--why", "relay down", "--by", "ann")
    assert (paused["paused"], paused["paused_by"], paused["paused_why"]) == (True, "ann", "relay down")
    assert [one["paused"] for one in line.json("queue", "list")["queues"] if one["queue"] == queue] == [True]
    assert not line.json("queue", "resume", queue)["paused"]
    typed = ["rate=2.5", "retries=none", "lease_ms=1m", "on_dead=stops", "backoff-ms=250"]
    found = line.json("queue", "set", queue, *typed)
    named = ("rate", "retries", "lease_ms", "on_dead", "backoff_ms")
    assert [found[name] for name in named] == [2.5, None, 60_000, "stops", 250]
    assert line.json("queue", "set", queue, "rate=default", "retries=default")["retries"] == 25
    assert line.json("queue", "show", queue)["rate"] == 0


def test_people_read_one_line_about_a_paused_queue(line: Line, queue: str) -> None:
    """A name without tasks may be wrong, so it is repeated. Queues with a name like it are suggested."""
    assert line.code("queue", "pause", queue) == 0
    assert line.said.out == f"{queue} is paused\n"
    assert line.said.err.partition(";")[0].strip() == f"the queue {queue} has no tasks yet"
    assert (line.code("queue", "resume", queue), line.said.out) == (0, f"{queue} is resumed\n")
    assert line.code("task", "list", "--queue", queue, "--state", "failed") == 0
    assert line.said.out == f"no tasks with queue={queue}, state=failed\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("raet=3", "did you mean rate?"),
        ("lease_ms", "lease_ms needs a value"),
        ("lease_ms=soon", "error: lease_ms"),
        ("lease_ms=3", "error: lease_ms"),
        ("paused=maybe", "error: paused"),
        ("on_dead=panics", "error: on_dead"),
        ("rate=fast", "error: rate"),
    ],
)
def test_bad_settings_are_named(line: Line, queue: str, typed: str, meant: str) -> None:
    """The error has the most similar name; nothing is set."""
    assert line.code("queue", "set", queue, typed) == 2
    assert meant in line.said.err
    assert line.code("queue", "show", queue) == 3


def test_the_command_line_works_on_dead_letters(line: Line, client: Client, queue: str) -> None:
    """They are listed, shown, requeued and discarded, by id or by filter."""
    first, second = (died(client, queue, error).hex() for error in ("no host", "no user"))
    assert [task["id"] for task in line.json("dead", "list", "--queue", queue, "--where", "host")["tasks"]] == [first]
    assert line.json("dead", "show", second)["error"] == "no user"
    assert line.code("dead", "requeue") == 2
    assert line.json("dead", "requeue", "--queue", queue, "--where", "host") == {"count": 1}
    assert line.json("dead", "discard", second)["count"] == 1
    assert line.code("dead", "show", second) == 4
    assert line.json("dead", "discard", second)["count"] == 1, "a repeat is answered like the first"
    assert [client.get(one).state for one in (first, second)] == ["ready", "cancelled"]


def test_the_command_line_streams_lists(line: Line, client: Client, queue: str) -> None:
    """A line of JSON for each task, newest first."""
    ids = client.enqueue_many(queue, [b""] * 510)
    assert line.code("task", "list", "--queue", queue, "--all", "--json") == 0
    assert [json.loads(text)["id"] for text in line.said.out.splitlines()] == sorted(
        (one.hex() for one in ids), reverse=True
    )


def test_the_command_line_sets_periodic_tasks(line: Line, queue: str) -> None:
    """Added, listed, paused, resumed and removed."""
    name = f"nightly {queue}"
    cron = ["30 3 * * mon-fri", "--zone", "Europe/Berlin"]
    options = ["--retries", "none", "--backoff-ms", "5s", "--expires-after-ms", "1h"]
    added = line.json("periodic", "add", name, queue, *cron, *options, "--data", '{"x": 1}', "--missed", "all")
    assert (added["data"], added["zone"], added["missed"], added["paused"]) == ({"x": 1}, "Europe/Berlin", "all", False)
    assert (added["retries"], added["backoff_ms"], added["expires_after_ms"]) == (None, 5_000, 3_600_000)
    assert added in line.json("periodic", "list")["periodic"]
    assert line.json("periodic", "pause", name)["paused"] and not line.json("periodic", "resume", name)["paused"]
    assert line.code("periodic", "show", name) == 0 and "no limit" in line.said.out
    assert line.code("periodic", "add", name, queue, "@daily") == 0 and "backoff" not in line.said.out
    assert line.code("periodic", "add", name, queue, "61 * * * *") == 2
    assert line.said.err.startswith("error: schedule: ")
    assert line.json("periodic", "remove", name) == {"name": name, "removed": True}
    assert line.code("periodic", "show", name) == 3


def test_a_claim_that_names_no_lease_has_its_queues(client: Client, queue: str) -> None:
    """This holds for client and cluster; renewals use the same."""
    client.set_queue(queue, lease_ms=3_600_000)
    client.enqueue(queue, b"x")
    before = time.monotonic()
    claims = client.claim(queue, wait_ms=WAIT_MS)
    assert before + 3_500 < claims.expires < time.monotonic() + 3_600
    client.set_queue(queue, lease_ms=1_000)
    client.renew(claims)
    assert claims.expires > before + 3_500


def test_an_update_says_how_many_nodes_have_it(live: Live, client: Client, queue: str) -> None:
    """Over HTTP the answer has it on request: one on a single node."""
    task_id = client.enqueue(queue, b"x")
    (claim,) = client.claim(queue, wait_ms=WAIT_MS)
    assert client.update(claim, b"one", w=1) == 0
    mine = {"id": task_id.hex(), "token": claim.token}
    plain = live.http.post("/v1/claims/update", json={**mine, "seq": 1, "data": 1})
    assert plain.json() == {"id": task_id.hex(), "ok": True}
    asked = live.http.post("/v1/claims/update", json={**mine, "seq": 2, "data": 2, "w": 1})
    assert asked.json() == {"id": task_id.hex(), "ok": True, "acks": 1}
    wrong = live.http.post("/v1/claims/update", json={**mine, "seq": 3, "data": 3, "w": 0})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "w")
