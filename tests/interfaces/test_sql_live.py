"""SQL over a cluster with tasks in all states, purged ones in an archive, against counts of the test's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from onyxq.client import Client
from onyxq.errors import BadRequest, Forbidden
from onyxq.interfaces.cli.main import run
from tests.interfaces.past_world import ADMIN, DONE, REMOVED, RETRIED, TENANT, World, past_world

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for all tests."""
    with past_world(tmp_path_factory.mktemp("archive")) as found:
        yield found


def test_each_task_counts_once_live_or_archived(world: World) -> None:
    """The numbers by queue and state are those of the test."""
    found = world.ask("select queue, state, count(*), count(distinct id) from tasks group by all")
    assert Counter({(queue, state): count for queue, state, count, _ in found}) == world.states
    assert all(count == distinct for _, _, count, distinct in found)
    assert dict(world.ask("select archived, count(*) from tasks group by archived")) == {
        True: DONE + REMOVED,
        False: sum(count for (queue, _), count in world.states.items() if queue == "mail"),
    }


@pytest.mark.parametrize("table", ["attempts", "claims"])
def test_each_attempt_and_each_claim_counts_once(world: World, table: str) -> None:
    """A claim that was given back belongs to the attempt after it."""
    found = world.ask(f"select queue, outcome, count(*) from {table} group by all")
    assert Counter({(queue, outcome): count for queue, outcome, count in found}) == getattr(world, table)


def test_attempts_show_how_each_ended(world: World) -> None:
    """They join with their tasks; the last claim of an attempt has its outcome."""
    query = """
        select t.attempts, a.attempt, a.outcome, a.error, a.claims, a.started <= a.ended
        from tasks t join attempts a using (id) where t.state = 'completed' order by all
    """
    expected = Counter({(0, 1, "completed", None, 1, True): DONE - RETRIED})
    expected += Counter({(1, 1, "failed", "not yet", 1, True): RETRIED, (1, 2, "completed", None, 1, True): RETRIED})
    expected += Counter({(0, 1, "completed", None, 2, True): 1})
    assert Counter(world.ask(query)) == expected


def test_each_entry_of_the_log_counts_once(world: World) -> None:
    """A collection moved most of them into files; the cluster has the others, and knows all."""
    with Client(world.address, token=ADMIN) as client:
        records = client.call("log", {"from": 0, "limit": 1_000})["records"]
    known = [(one["position"], n, e["entry"], e["verdict"]) for one in records for n, e in enumerate(one["entries"])]
    last = known[-1][0]
    found = world.ask(
        f"select position, index, entry, verdict from entries where position <= {last} order by position, index"
    )
    assert known[0][0] == 0 and found == known
    assert {entry for _, _, entry, _ in found} >= {"grant_claims", "set_queue", "gc"}
    archived = world.ask("select position, index, entry, verdict from entries order by position, index", offline=True)
    assert archived == known[: len(archived)] and 0 < len(archived) < len(known)


def test_data_and_times_are_values(world: World) -> None:
    """Payloads are bytes, which SQL reads as JSON; times compare with times."""
    total = world.ask(
        "select sum((decode(data)::json->>'n')::int) from tasks where queue = 'bills' and format = 'json'"
    )
    assert int(total[0][0]) == sum(range(DONE))
    assert world.ask("select count(*) from tasks where made > now() + interval 30 minute") == [(4,)]
    assert world.ask(f"select state, decode(result) from tasks where id = '{world.some_id}'") == [("completed", "paid")]


def test_a_tenant_sees_the_queues_that_it_may_read(world: World) -> None:
    """Neither the cluster's nor the archive's tasks of others appear."""
    mail = sum(count for (queue, _), count in world.states.items() if queue == "mail")
    assert world.ask("select count(*) from tasks where queue = 'mail'", token=TENANT) == [(mail,)]
    for query in (
        "from tasks",
        "from tasks where queue = 'bills'",
        "from claims where queue <> 'mail'",
        "from entries",
    ):
        with pytest.raises(Forbidden):
            world.ask(f"select count(*) {query}", token=TENANT)


def test_queries_see_the_tables_and_nothing_else(world: World, tmp_path: Path) -> None:
    """Files, settings and other statements are refused."""
    for query in (
        "select * from read_text('/etc/passwd')",
        f"copy tasks to '{tmp_path}/x.csv'",
        "select nothing from tasks",
    ):
        with pytest.raises(BadRequest):
            world.ask(query)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_tables_json_and_csv(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """It reads a cluster and archives together, or archives alone."""
    query = (
        "select queue, count(*) n, max(data) d, max(made) m from tasks where state = 'completed' group by 1 order by 1"
    )
    words = ["--connect", world.address, "--token", ADMIN, "--archive", str(world.archive)]
    assert run(["sql", query, *words, "--json"]) == 0
    bills, mail = json.loads(capsys.readouterr().out)
    assert (bills["queue"], bills["n"], bills["d"], mail["n"]) == ("bills", DONE, '{"n": 9}', 1)
    assert bills["m"].endswith("Z")
    assert run(["sql", "select queue, state from tasks where state = 'cancelled'", *words, "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "queue,state" and Counter(lines[1:]) == {"bills,cancelled": REMOVED, "mail,cancelled": 1}
    assert run(["sql", "select count(*) n from tasks", "--offline", "--archive", str(world.archive)]) == 0
    assert capsys.readouterr().out.split() == ["n", str(DONE + REMOVED)]
    assert run(["sql", "selec 1", "--offline"]) == 2
