"""The outbox on a real PostgreSQL and a real cluster: every way to write rows, order, refusals, one relay at a time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import BigInteger, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onyxq import App, AsyncClient, Client, Step
from onyxq.core.ids import TaskId, make_id
from onyxq.interfaces.cli.main import run
from onyxq.outbox import OutboxDatabase, Relay
from onyxq.outbox import psycopg as with_psycopg
from onyxq.outbox import sqlalchemy as with_sqlalchemy
from tests.interfaces.live_world import Live
from tests.outbox.dying_relay import STEPS
from tests.processes.cluster import surroundings

WAIT_MS = 10_000
LOOK_EVERY_S = 0.02
TASKS = 600
"""Tasks of the test of order: more than one batch."""

app = App()


@app.task(queue="orders")
def ship(order: int) -> None:
    """Ship an order; never run here."""


class Base(DeclarativeBase):
    """The tables of a shop."""


class Order(Base):
    """An order of a shop."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)


outbox = with_sqlalchemy.Outbox(Base.metadata)


@pytest.fixture
def table(database: str) -> str:
    """A database with the table; returns its URL."""
    assert run(["outbox", "create", "--database", database]) == 0
    return database


def relayed(live: Live, database: str, *, until: Callable[[OutboxDatabase], bool]) -> Relay:
    """Run a relay until a condition holds; return it after its end."""
    relay = Relay(database)

    async def main() -> None:
        async with AsyncClient(live.address) as client, anyio.create_task_group() as group:
            group.start_soon(relay.run, client)
            with OutboxDatabase(database) as watched, anyio.fail_after(30):
                while not until(watched):
                    await anyio.sleep(LOOK_EVERY_S)
            relay.stop()

    anyio.run(main)
    return relay


def empty(database: OutboxDatabase) -> bool:
    """Whether no row waits for the relay."""
    return not database.pending(1)


def claimed(client: Client, queue: str, tasks: int) -> list[tuple[TaskId, Any]]:
    """Complete tasks of a queue; return id and data of each, and check that there are no more."""
    seen: list[tuple[TaskId, Any]] = []
    while len(seen) < tasks:
        claims = client.claim(queue, max=1_000, wait_ms=WAIT_MS)
        assert len(claims), f"only {len(seen)} of {tasks} tasks"
        seen += [(claim.id, json.loads(claim.data)) for claim in claims]
        client.complete(claims)
    assert not len(client.claim(queue, max=10)), "there are more tasks than rows"
    return seen


def test_a_task_exists_if_and_only_if_its_transaction_is_committed(live: Live, client: Client, table: str) -> None:
    """psycopg: a committed row becomes a task under the id that the writer got; a rolled back one does not."""
    writer = with_psycopg.Outbox()
    with psycopg.connect(table) as connection:
        with connection.transaction():
            kept = writer.add(connection, ship.s(1))
        with connection.transaction(force_rollback=True):
            writer.add(connection, ship.s(2))
        with connection.transaction():
            more = writer.add_many(connection, [ship.s(3), ship.s(4)])
    relay = relayed(live, table, until=empty)
    assert relay.relayed == 3
    found = dict(claimed(client, "orders", 3))
    assert {task_id: call["args"] for task_id, call in found.items()} == {kept: [1], more[0]: [3], more[1]: [4]}


def test_sessions_of_sqlalchemy_write_tasks(live: Live, client: Client, database: str) -> None:
    """``create_all`` makes a table that the relay reads; sync and async sessions write to it."""
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(id=1))
        first = outbox.add(session, ship.s(1))
    with Session(engine) as session:
        session.add(Order(id=2))
        outbox.add(session, ship.s(2))  # never committed
    engine.dispose()

    async def write() -> TaskId:
        engine = create_async_engine(database.replace("postgresql://", "postgresql+psycopg://"))
        async with AsyncSession(engine) as session, session.begin():
            session.add(Order(id=3))
            third = await outbox.add_async(session, ship.options(priority=7).s(3))
        async with engine.connect() as connection:
            assert list(await connection.scalars(select(Order.id).order_by(Order.id))) == [1, 3]
        await engine.dispose()
        return third

    third = anyio.run(write)
    relayed(live, database, until=empty)
    assert client.get(third).priority == 7
    assert {task_id for task_id, _ in claimed(client, "orders", 2)} == {first, third}


def test_asynchronous_connections_of_psycopg_write_tasks(live: Live, client: Client, table: str) -> None:
    """The same in a transaction of an ``AsyncConnection``."""

    async def write() -> TaskId:
        async with await psycopg.AsyncConnection.connect(table) as connection:
            return await with_psycopg.Outbox().add_async(connection, ship.s(5))

    task_id = anyio.run(write)
    relayed(live, table, until=empty)
    assert [one for one, _ in claimed(client, "orders", 1)] == [task_id]


def test_a_relay_that_died_after_an_enqueue_makes_no_second_task(live: Live, client: Client, table: str) -> None:
    """A task that is stored, and even completed, under the id of its row is recognised; the row goes."""
    writer = with_psycopg.Outbox()
    with psycopg.connect(table) as connection:
        ids = writer.add_many(connection, [Step("twice", b"1"), Step("twice", b"2", ordering_key="k")])
    with OutboxDatabase(table) as dead:
        rows = dead.pending(10)
        dead.mark_sent([row.seq for row in rows])
    for row in rows:
        client.enqueue(row.queue, row.data, **row.arguments(client.now_ms()))
    assert len(claimed(client, "twice", 2)) == 2
    relay = relayed(live, table, until=empty)
    assert (relay.relayed, relay.refused) == (2, 0)
    assert not len(client.claim("twice"))
    assert [len(client.get(one).claims) for one in ids] == [1, 1]


@pytest.mark.parametrize("step", STEPS)
def test_a_relay_that_is_killed_at_any_step_loses_and_repeats_nothing(
    live: Live, client: Client, table: str, step: str
) -> None:
    """The next relay finishes the round: each row has its one task, under the id of the writer."""
    with psycopg.connect(table) as connection:
        ids = with_psycopg.Outbox().add_many(connection, [Step("killed", b"%d" % number) for number in range(5)])
    command = [sys.executable, "-m", "tests.outbox.dying_relay", step, table, live.address]
    assert subprocess.run(command, env=surroundings(), timeout=60, check=False).returncode == -signal.SIGKILL
    relayed(live, table, until=empty)
    assert sorted(claimed(client, "killed", 5)) == sorted(zip(ids, range(5), strict=True))


@pytest.mark.long
def test_tasks_of_one_key_keep_the_order_of_their_rows(live: Live, client: Client, table: str) -> None:
    """Over several batches, beside other keys and tasks without a key; a dependency of the same batch is found."""
    writer = with_psycopg.Outbox()
    steps = [
        Step("ledger", str(n).encode(), **({} if n % 4 == 3 else {"ordering_key": f"account {n % 4}"}))
        for n in range(TASKS)
    ]
    with psycopg.connect(table) as connection:
        first = writer.add_many(connection, steps)
        last = writer.add(connection, Step("ledger", b"-1", depends=[first[0]]))
    relayed(live, table, until=empty)
    numbers = [number for _, number in claimed(client, "ledger", TASKS + 1)]
    for key in range(3):
        assert [n for n in numbers if n >= 0 and n % 4 == key] == list(range(key, TASKS, 4))
    assert client.get(last).depends == (first[0],)


def test_a_refused_row_waits_for_a_decision_and_holds_up_no_other(
    live: Live, client: Client, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`onyxq outbox list` names the reason; `retry` and `discard` decide."""
    outside = make_id(1_700_000_000_000, 60_000, 1, 0)
    with psycopg.connect(table) as connection:
        insert = with_psycopg.Outbox().insert.encode()
        connection.execute(insert, [outside, "far", b"1", Jsonb({})])
        connection.execute(insert, [b"too short", "far", b"2", Jsonb({})])
        connection.execute(insert, [outside, "far", b"3", Jsonb({"colour": "red"})])
        for options in ([], {"depends": 5}, {"at_ms": "noon"}, {"priority": {}}):
            connection.execute(insert, [outside, "malformed", b"3", Jsonb(options)])
        kept = with_psycopg.Outbox().add(connection, Step("far", b"4"))
    relay = relayed(live, table, until=empty)
    assert (relay.relayed, relay.refused) == (1, 7)
    assert claimed(client, "far", 1) == [(kept, 4)]
    capsys.readouterr()
    assert run(["outbox", "list", "--json", "--database", table]) == 0
    first, second, third, *others = json.loads(capsys.readouterr().out)["refused"]
    assert "names partition 60000; the cluster has" in first["error"]
    assert {one["queue"] for one in others} == {"malformed"}
    assert "20 bytes" in second["error"] and "'colour'" in third["error"]
    assert run(["outbox", "discard", str(third["row"]), "--database", table]) == 0
    assert run(["outbox", "discard", str(third["row"]), "--database", table]) == 3
    with OutboxDatabase(table) as database:
        database.renumber({first["row"]: make_id(1_700_000_000_000, 1, 2, 0)})
        database.refuse(first["row"], "as an operator would correct it")
    assert run(["outbox", "retry", str(first["row"]), "--new-id", "--database", table]) == 0
    relayed(live, table, until=empty)
    assert [data for _, data in claimed(client, "far", 1)] == [1]


def test_one_relay_works_at_a_time_and_another_replaces_it(live: Live, client: Client, table: str) -> None:
    """The lock ends with the connection of the first, as it does if the relay is killed."""
    with psycopg.connect(table) as connection:
        with_psycopg.Outbox().add(connection, Step("locked", b"1"))
    first = OutboxDatabase(table)
    assert first.lock()
    looks = iter(range(10_000))

    def freed(database: OutboxDatabase) -> bool:
        if next(looks) == 20:
            assert len(database.pending(1)) == 1, "a second relay must wait"
            first.close()
        return empty(database)

    with OutboxDatabase(table) as other:
        assert not other.lock()
    assert relayed(live, table, until=freed).relayed == 1
    assert len(claimed(client, "locked", 1)) == 1


def test_a_lost_connection_to_the_database_is_opened_again(live: Live, client: Client, table: str) -> None:
    """The relay reports the error and continues."""
    cut: list[bool] = []

    def over(database: OutboxDatabase) -> bool:
        if not cut:
            with psycopg.connect(table) as connection:
                ended = connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
                    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                ).fetchall()
                if ended:
                    cut.append(True)
                    with_psycopg.Outbox().add(connection, Step("cut", b"1"))
            return False
        return empty(database)

    assert relayed(live, table, until=over).relayed == 1
    assert len(claimed(client, "cut", 1)) == 1


def test_a_missing_database_or_table_is_explained(
    live: Live, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands end with "unavailable", the relay with "not found", and name what to do."""
    assert run(["outbox", "relay", "--database", database, "--connect", live.address]) == 3
    assert "onyxq outbox create" in capsys.readouterr().err
    assert run(["outbox", "list", "--database", database]) == 5
    assert "onyxq outbox create" in capsys.readouterr().err
    assert run(["outbox", "create", "--database", database + "_not"]) == 5
    assert "does not exist" in capsys.readouterr().err


def test_rows_depend_on_the_new_ids_of_rows(table: str) -> None:
    """The cluster would take the old ids for tasks that are done and purged. Other rows stay as they are."""
    writer = with_psycopg.Outbox()
    with psycopg.connect(table) as connection:
        first, other = writer.add_many(connection, [Step("new", b"1"), Step("new", b"2")])
        writer.add_many(connection, [Step("new", b"3", depends=[other, first]), Step("new", b"4", depends=[other])])
        for depends in (5, first.hex(), {first.hex(): 1}, [5, None, [first.hex()], {first.hex(): 1}]):
            values = [bytes(20), Jsonb({"depends": depends})]
            connection.execute(
                "INSERT INTO onyxq_outbox (task_id, queue, data, options) VALUES (%s, 'new', '', %s)", values
            )
    fresh, also = (make_id(1_700_000_000_000, 1, 2, number) for number in range(2))
    with OutboxDatabase(table) as database:
        before = database.pending(10)
        database.renumber({before[0].seq: fresh, before[2].seq: also})
        after = database.pending(10)
    assert [row.task_id for row in after] == [fresh, other, also, *(row.task_id for row in before[3:])]
    assert after[2].depends == [other.hex(), fresh.hex()]
    assert [row.options for row in after[3:]] == [row.options for row in before[3:]]
