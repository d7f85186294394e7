"""A credential for some queues gives no access to tasks of other queues, by any argument that can name a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define, field

from onyxq import App, AsyncClient
from onyxq.access.grants import Access, Token
from onyxq.core.facts import pack_task
from onyxq.core.ids import ids_of
from onyxq.core.queue_settings import SETTINGS
from onyxq.errors import Forbidden, NotFound, OnyxqError, TooLarge, Unauthorized
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.operations.checks.access import ARGUMENTS_BYTES_MAX, RUNS_AT_ONCE, Guarded, check_size
from onyxq.worker.periodic import keep
from tests.interfaces.live_world import PATIENCE_MS, Wire, claim_of, fresh_id, running
from tests.interfaces.test_protocol_page import TOLD

OURS, THEIRS = "ours.q", "theirs.q"
TOKEN = Token.of("a token for ours only", "ours", ["admin:ours."])
ALL = Token.of("a token for everything", "all", ["admin"])
HOLDING = claim_of(THEIRS, wait_ms=PATIENCE_MS, lease_ms=3_600_000)

Item = tuple[str, dict[str, Any]]


def naming(task: bytes, token: int) -> list[Item]:
    """Every call that can name a task, once for each argument that can."""
    new = [fresh_id(), pack_task({"queue": OURS}, [b"x"])]
    return [
        ("get", {"id": task}),
        ("task_log", {"id": task}),
        ("task_history", {"id": task}),
        ("tasks.bodies", {"runs": [[task, 1]]}),
        ("cancel", {"ids": [task]}),
        ("cancel", {"ids": [task], "claimed": True}),
        ("dead.discard", {"ids": [task]}),
        ("dead.requeue", {"ids": [task]}),
        ("complete", {"items": [[task, 1, token, None, []]]}),
        ("fail", {"items": [[task, 1, token, "", None]]}),
        ("release", {"items": [[task, 1, token]]}),
        ("give_up", {"items": [[task, 1, token, ""]]}),
        ("postpone", {"items": [[task, 1, token, "", 0]]}),
        ("renew", {"items": [[task, 1, token, 30_000]]}),
        ("update", {"items": [[task, token, 0, b"x"]]}),
        ("transact", {"name": "complete", "complete": [[task, 1, token, []]], "enqueue": [new]}),
        ("transact", {"name": "update", "update": [[task, token, 0, b"x"]], "enqueue": [new]}),
        ("transact", {"name": "require", "require": [[task, 1, token]], "enqueue": [new]}),
    ]


KINDS = range(len(naming(b"", 0)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node that asks for credentials."""
    with running(http=True, access=Access((TOKEN, ALL), "what the peers share")) as cluster:
        yield cluster


@pytest.fixture
def wires(cluster: LocalCluster) -> Iterator[tuple[Wire, Wire]]:
    """A connection with the credential for our queues, and one with the credential for all."""
    credentials = ("a token for ours only", "a token for everything")
    hellos = [{"role": "client", "credential": credential} for credential in credentials]
    with Wire(cluster.addresses[0], hello=hellos[0]) as ours, Wire(cluster.addresses[0], hello=hellos[1]) as every:
        yield ours, every


def held(wire: Wire) -> tuple[bytes, int]:
    """A task of theirs, claimed by them, and its token."""
    task = fresh_id()
    wire.call("enqueue", {"runs": [[task, pack_task({"queue": THEIRS}, [b"their secret"])]]})
    ((token, *_),) = wire.call("claim", HOLDING)["claims"]
    return task, token


@pytest.mark.parametrize("kind", KINDS)
def test_no_argument_gives_access_to_a_claimed_task_of_another_queue(wires: tuple[Wire, Wire], kind: int) -> None:
    """Even with its fencing token: the call is forbidden, the task does not change, and the error shows no data."""
    ours, every = wires
    task, token = held(every)
    operation, args = naming(task, token)[kind]
    before = every.call("get", {"id": task}), every.call("task_log", {"id": task})
    error = ours.error(operation, args)
    assert error["code"] == "forbidden" and "their secret" not in repr(error)
    assert (every.call("get", {"id": task}), every.call("task_log", {"id": task})) == before
    assert ours.call("list", {"queue": OURS})["tasks"] == []
    every.call("complete", {"items": [[task, 1, token, None, []]]})


def test_no_argument_gives_access_to_another_group_of_the_task_store(wires: tuple[Wire, Wire]) -> None:
    """Not even ``depends``, whose outcome would show whether the task exists."""
    ours, every = wires
    ((theirs, *_),) = every.call("taskstore.update", {"client": 1, "adds": [[THEIRS, "their secret", 0]]})["tasks"]
    adds = [[OURS, "x", 0]]
    for operation, args in (
        ("taskstore.update", {"client": 2, "adds": adds, "depends": [theirs]}),
        ("taskstore.update", {"client": 2, "adds": adds, "deletes": [theirs]}),
        ("taskstore.update", {"client": 2, "adds": adds, "changes": [[theirs, "mine", 0]]}),
        ("taskstore.claim", {"client": 2, "group": OURS, "duration_ms": 1, "depends": [theirs]}),
        ("taskstore.tasks", {"ids": [theirs]}),
    ):
        error = ours.error(operation, args)
        assert error["code"] == "forbidden" and "their secret" not in repr(error), operation
    assert ours.call("taskstore.group", {"group": OURS, "owned": True})["tasks"] == []
    assert every.call("taskstore.tasks", {"ids": [theirs]})["tasks"][0][1] == THEIRS


@pytest.mark.parametrize(
    ("role", "operation", "args", "said"),
    [
        ("consume", "periodic.get", {"name": "nightly"}, "periodic.get needs the role read"),
        ("consume", "count", {"queue": THEIRS}, f"count needs the role read on queue '{THEIRS}'"),
        ("produce:ours.", "enqueue", None, f"enqueue needs the role produce on queue '{THEIRS}'"),
        ("read:ours.", "periodic.list", {}, "periodic.list needs the role read on every queue"),
    ],
)
def test_a_refusal_names_the_operation_the_role_and_the_queue(
    role: str, operation: str, args: dict[str, Any] | None, said: str
) -> None:
    """So that the reader knows which call of a program needs which role, and where."""
    token = Token.of("a token with a small role", "small", [role])
    guarded = Guarded(Late(), Access((token,), "").of_token("a token with a small role"))
    if args is None:
        args = {"runs": [[fresh_id(), pack_task({"queue": THEIRS}, [b"x"])]]}
    with pytest.raises(Forbidden) as caught:
        trio.run(guarded.call, operation, args)
    assert caught.value.message == said


def test_a_worker_with_roles_on_its_queues_sets_up_its_periodic_functions(cluster: LocalCluster) -> None:
    """It may not list the periodic tasks of all queues, and continues without that."""
    app, errors = App(), list[OnyxqError]()

    @app.periodic("every 90s", name="tick")
    @app.task(queue=OURS)
    def tick() -> None: ...

    async def scenario() -> None:
        async with AsyncClient(cluster.addresses[0], token="a token for ours only") as client:
            with trio.CancelScope() as until_done:
                how: Any = {"give_up": errors.append, "done": until_done.cancel}
                await keep(client, app.periodics, tasks=app.tasks, queues=[OURS], **how)
            assert (await client.periodic("tick"))["queue"] == OURS
            await client.remove_periodic("tick")

    trio.run(scenario)
    assert errors == []


# --- tasks that are not there yet


@define
class Late:
    """A node that has the tasks only after their queues were looked up."""

    done: list[str] = field(factory=list)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Do every call; only the look-up finds no tasks."""
        if method == "tasks.bodies":
            return {"bodies": [], "missing": args["runs"], "rest": []}
        self.done.append(method)
        return {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_refused_while_the_queue_of_its_task_is_unknown(kind: int) -> None:
    """A task that the look-up does not find may exist a moment later, in another queue."""
    node = Late()
    operation, args = naming(fresh_id(), 7)[kind]
    guarded = Guarded(node, Access((TOKEN,), "").of_token("a token for ours only"))
    with pytest.raises(NotFound):
        trio.run(guarded.call, operation, args)
    assert node.done == []


@define
class Paged:
    """A node that looks up one run at a time; the last one is of another queue."""

    done: list[str] = field(factory=list)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Do every call; a look-up answers for the first run and gives back the rest."""
        if method == "tasks.bodies":
            first, *rest = args["runs"]
            queue = OURS if rest else THEIRS
            return {"bodies": [[first[0], pack_task({"queue": queue}, [b"x"])]], "missing": [], "rest": rest}
        self.done.append(method)
        return {}


@pytest.mark.parametrize("secret", [None, ""])
@pytest.mark.parametrize("credential", [None, "", "a token for everything"])
def test_without_a_secret_nobody_is_taken_for_a_peer(secret: str | None, credential: str | None) -> None:
    """A cluster of one peer may ask for tokens and have no secret; an empty credential must not match that."""
    with pytest.raises(Unauthorized):
        Access((ALL,), secret).check_peer(credential)


def test_only_operations_that_take_data_take_large_requests(wires: tuple[Wire, Wire]) -> None:
    """The size is judged before the arguments are, and also for a method that does not exist."""
    assert wires[1].error("count", {"queue": "x" * ARGUMENTS_BYTES_MAX})["code"] == "too_large"
    check_size("enqueue", ARGUMENTS_BYTES_MAX + 1)
    for method in ("count", "queue.set", "no.such.method"):
        check_size(method, ARGUMENTS_BYTES_MAX)
        with pytest.raises(TooLarge):
            check_size(method, ARGUMENTS_BYTES_MAX + 1)


def test_every_page_of_a_look_up_is_checked() -> None:
    """Also what the node leaves for a later page."""
    node = Paged()
    guarded = Guarded(node, Access((TOKEN,), "").of_token("a token for ours only"))
    with pytest.raises(Forbidden):
        trio.run(guarded.call, "cancel", {"ids": [fresh_id() for _ in range(3)]})
    assert node.done == []


@define
class Whole:
    """A node that looks up all that one question names; one task is of another queue."""

    theirs: bytes
    done: list[str] = field(factory=list)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Do every call; a look-up leaves nothing for a later page."""
        if method == "tasks.bodies":
            queues = ((first, THEIRS if first == self.theirs else OURS) for first, _ in args["runs"])
            bodies = [[first, pack_task({"queue": queue}, [b"x"])] for first, queue in queues]
            return {"bodies": bodies, "missing": [], "rest": []}
        self.done.append(method)
        return {}


@pytest.mark.parametrize("place", [0, RUNS_AT_ONCE - 1, RUNS_AT_ONCE, 2 * RUNS_AT_ONCE])
def test_a_task_of_another_queue_is_found_wherever_a_long_call_names_it(place: int) -> None:
    """Also if it takes several questions to look all of them up."""
    ids = [fresh_id() for _ in range(2 * RUNS_AT_ONCE + 1)]
    node = Whole(ids[place])
    guarded = Guarded(node, Access((TOKEN,), "").of_token("a token for ours only"))
    with pytest.raises(Forbidden):
        trio.run(guarded.call, "complete", {"items": [[task, 1, 7, None, []] for task in ids]})
    assert node.done == []


def test_a_call_that_names_a_missing_task_changes_no_other_task(wires: tuple[Wire, Wire]) -> None:
    """The tasks that exist are still ready."""
    ours, _ = wires
    there = fresh_id()
    ours.call("enqueue", {"runs": [[there, pack_task({"queue": "ours.partly"}, [b"x", b"y"])]]})
    assert ours.error("cancel", {"ids": [there, fresh_id()]})["code"] == "not_found"
    assert [ours.call("get", {"id": one})["state"] for one in ids_of(there, 2)] == ["ready", "ready"]


# --- every argument of every method of the protocol's page

NEUTRAL = set(
    """
    ahead_ms after after_ms all args backoff batch by bytes_max callback claimed client count data deadline_ms digest
    duration_ms error events expires_ms for_ms format from from_batch from_ms from_start host input job keep_ms key
    lease_ms like limit made_ms max missed new_id newest_first node number offsets order owned part paused
    permanent priority progress request replace same_outputs seen seen_seq seen_token schedule since_ms
    skip state task_bytes_max timeout until_ms version w wait_ms where why worker zone position partition peer
    entry known place size_bytes expires_after_ms
    """.split()
) | set(SETTINGS)
"""Arguments that name nothing that belongs to a queue, in any method."""


def named_by(argument: str, task: bytes, token: int, stored: int) -> dict[str, list[Any]]:
    """By method, values of an argument that mean something of theirs."""
    claim = [[task, 1, token]]
    found: dict[str, dict[str, list[Any]]] = {
        "id": {"timer.set": ["t"], "timer.get": ["t"], "timer.cancel": ["t"], "": [task]}
        | {
            f"job.{verb}": ["theirs"]
            for verb in "get wait kill seal replay savepoint savepoints host letters requeue".split()
        },
        "ids": {"taskstore.tasks": [[stored]], "": [[task]]},
        "items": {
            "complete": [[[task, 1, token, None, []]]],
            "fail": [[[task, 1, token, "", None]]],
            "renew": [[[task, 1, token, 30_000]]],
            "release": [claim],
            "give_up": [[[task, 1, token, ""]]],
            "postpone": [[[task, 1, token, "", 0]]],
            "update": [[[task, token, 0, b"x"]]],
        },
        "runs": {"enqueue": [[[fresh_id(), pack_task({"queue": THEIRS}, [b"x"])]]], "tasks.bodies": [[[task, 1]]]},
        "complete": {"": [[[task, 1, token, []]]]},
        "update": {"": [[[task, token, 0, b"x"]]]},
        "require": {"": [claim]},
        "enqueue": {"": [[[fresh_id(), pack_task({"queue": THEIRS}, [b"x"])]]]},
        "queue": {"": [THEIRS]},
        "queues": {"": [[THEIRS]]},
        "prefixes": {"": [[THEIRS]]},
        "name": {"": ["theirs"]},
        "group": {"": [THEIRS]},
        "adds": {"": [[[THEIRS, "x", 0]]]},
        "changes": {"": [[[stored, "x", 0]]]},
        "deletes": {"": [[stored]]},
        "depends": {"": [[stored]]},
        "tasks": {"flow.make": [[{"queue": THEIRS}]]},
        "on_done": {"flow.make": [{"queue": THEIRS}]},
        "prepared": {"": [[]]},
        "body": {"": [b""]},
        "outputs": {"": [{"out": THEIRS}]},
        "task": {"": ["theirs"]},
        "letter": {"": [task]},
    }
    return found[argument]


FREE = {("transact", "name")}
"""Names that belong to no queue; docs/security.rst says what follows."""
NAMING = [
    (method, argument)
    for method, arguments in TOLD.items()
    for argument in arguments
    if argument not in NEUTRAL and (method, argument) not in FREE
]


def test_each_argument_is_judged() -> None:
    """A new argument is listed above: as one that names nothing of a queue, or with a value that does."""
    for method, argument in NAMING:
        values = named_by(argument, b"", 0, 0)
        assert method in values or "" in values, f"{method}: {argument}"


@pytest.mark.parametrize(("method", "argument"), NAMING)
def test_an_argument_that_names_what_is_theirs_is_refused_and_tells_nothing(
    wires: tuple[Wire, Wire], method: str, argument: str
) -> None:
    """What exists is forbidden, what does not is forbidden or not found. No answer names what the call did not."""
    ours, every = wires
    task, token = held(every)
    ((stored, *_),) = every.call("taskstore.update", {"client": 1, "adds": [[THEIRS, "their secret", 0]]})["tasks"]
    every.call("periodic.set", {"name": "theirs", "queue": THEIRS, "schedule": "0 0 1 1 *"})
    before = every.call("get", {"id": task}), every.call("count", {"queue": THEIRS})
    codes = []
    for there in (True,) if (method, argument) == ("periodic.set", "name") else (True, False):  # a free name may be had
        values = named_by(argument, *((task, token, stored) if there else (fresh_id(), token, stored + 1_000)))
        (value,) = values.get(method, values.get("", []))
        if not there and value == "theirs":
            value = "nobody's"
        args = {**{name: given for name, given in OTHERS.get(method, {}).items() if name != argument}, argument: value}
        error = ours.error(method, args)
        codes.append(error["code"])
        said = f"{error['message']} {error['hint']} {error.get('details')}"
        assert "their secret" not in said and (THEIRS not in said or THEIRS in repr(args)), said
        assert error["code"] == "not_found" or error["message"].startswith(f"{method} needs the role "), said
    assert codes[0] == "forbidden" and codes[-1] in ("forbidden", "not_found")
    assert (every.call("get", {"id": task}), every.call("count", {"queue": THEIRS})) == before
    every.call("complete", {"items": [[task, 1, token, None, []]]})


OTHERS: dict[str, dict[str, Any]] = {
    "transact": {"name": "t", "enqueue": []},
    "periodic.set": {"name": "ours", "queue": OURS, "schedule": "0 0 1 1 *"},
    "queue.set": {"retries": 3},
    "flow.make": {"tasks": [{"queue": OURS}]},
    "taskstore.update": {"client": 2, "adds": [[OURS, "x", 0]]},
    "taskstore.claim": {"client": 2, "group": OURS},
    "backup.hold": {"for_ms": -1},
    "job.replay": {"id": "ours", "from_start": True},
    "job.letters": {"id": "ours"},
    "job.requeue": {"id": "ours"},
}
"""What else a call needs, of our own."""
