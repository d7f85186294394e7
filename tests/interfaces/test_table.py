"""The table of operations: what follows from it has the same arguments, and errors name the field."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from msgspec.structs import asdict

from onyxq import AsyncClient, Client
from onyxq.client.policy import OF_QUEUE
from onyxq.client.taskstore import AsyncTaskStore, TaskStore
from onyxq.core.ids import make_id
from onyxq.core.limits import members
from onyxq.core.queue_settings import SETTINGS, Queue
from onyxq.errors import BadRequest, TooLarge
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from onyxq.interfaces.http.routes.enqueue import NewTask
from onyxq.operations.table.claim import COMPLETE, Complete, Completion
from onyxq.operations.table.enqueue import ENQUEUE, SOME_BODY, Enqueue, NewRun
from onyxq.operations.table.everything import BY_NAME, OPERATIONS
from onyxq.operations.table.json_form import arguments, data_member, json_text
from onyxq.operations.table.operation import Operation, Place, id_of
from onyxq.operations.table.queue import shown_settings
from onyxq.operations.table.task import CANCEL_TASKS, CancelTasks

STORES: dict[type, type] = {AsyncClient: AsyncTaskStore, Client: TaskStore}
IN_PYTHON = [one for one in OPERATIONS if one.python]
VERBS = [(one, verb) for one in OPERATIONS for verb in one.verbs]


@pytest.mark.parametrize("operation", IN_PYTHON, ids=lambda one: one.name)
@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_the_clients_have_the_arguments_of_the_table(client: type, operation: Operation[Any, Any]) -> None:
    """By name; those that are needed have no default, and the others the same one, or what the queue says."""
    kind, _, method = operation.python.rpartition(".")
    owner = STORES[client] if kind else client
    had = inspect.signature(getattr(owner, method)).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in had.values())
    named = {operation.python_names.get(name, name): member for name, member in operation.members.items()}
    known = {
        name: one for name, one in had.items() if name not in ("self", "timeout_ms") and one.kind is not one.VAR_KEYWORD
    }
    assert known.keys() <= named.keys()
    for name, member in named.items():
        if name not in known:
            assert name in operation.python_left_out or (open_ended and not member.required), name
            continue
        default = None if known[name].default is OF_QUEUE else known[name].default
        if default is not inspect.Parameter.empty:
            chosen = name in operation.python_chosen
            assert member.required == chosen and (default or None) == (member.default or None), name
        else:
            assert member.required or name in operation.python_needed, name


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_the_clients_have_the_options_of_a_task_of_http(client: type) -> None:
    """With the same defaults; None and the queue's setting are what is not sent."""
    had = inspect.signature(client.enqueue).parameters  # type: ignore[attr-defined]
    left_out = {"self", "timeout_ms", "options", "payload", "format", "w", "delay"}  # delay is delay_ms in seconds
    named = {name: member for name, member in members(NewTask).items() if name not in ("data", "format", "trace")}
    spelled = {"unique_period": "unique_period_ms"}  # in Python a duration in seconds or as text
    known = {spelled.get(name, name): one for name, one in had.items() if name not in left_out}
    assert known.keys() == named.keys()
    for name, member in named.items():
        default = known[name].default
        assert (default is inspect.Parameter.empty) == member.required, name
        if name != "retries" and not member.required:
            assert (default or None) == (member.default or None), name


@pytest.mark.parametrize(("operation", "verb"), VERBS, ids=lambda one: one.name)
def test_each_example_of_a_command_can_be_typed(operation: Operation[Any, Any], verb: Any) -> None:
    """And belongs to the operation."""
    import shlex

    typed = build(COMMANDS, NOUNS).parse_args([*verb.name.split(), *shlex.split(verb.example)])
    assert typed.command.row == (operation, verb)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_each_operation_says_what_it_does(operation: Operation[Any, Any]) -> None:
    """Its example is valid, and its text is a sentence."""
    operation.decode(dict(operation.example))
    assert operation.args.__doc__ and operation.args.__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize(
    ("method", "given", "field", "said"),
    [
        ("queue.set", {}, "queue", "queue is missing"),
        ("queue.set", {"queue": "a", "rat": 5}, "rat", "rat is not a known field"),
        ("queue.set", {"queue": "a", "lease_ms": 5}, "lease_ms", "an integer from 1000 to 86400000 or null, not 5"),
        ("queue.set", {"queue": "a", "on_dead": ["x"]}, "on_dead", "one of goes on, stops or null, not a list of 1"),
        ("queue.set", {"queue": "a", "rate": "5"}, "rate", "a number from 0 to 1000000 or null, not '5'"),
        ("queue.get", {"queue": "a\n"}, "queue", "without control characters, not 'a\\n'"),
        ("queue.get", {"queue": "a", 5: 1}, None, "the request must be a map with texts as keys"),
        ("queue.get", [], None, "the request must be a map with texts as keys, not a list of 0"),
        ("periodic.set", {"name": "p", "data": "x"}, "data", "binary of at most 65536 bytes, not 'x'"),
        ("periodic.set", {"name": "p", "paused": None}, "paused", "true or false, not null"),
    ],
)
def test_an_error_names_the_field_and_what_was_expected(method: str, given: Any, field: str | None, said: str) -> None:
    """In words that tell what to send instead."""
    with pytest.raises(BadRequest) as refused:
        BY_NAME[method].decode(given)
    assert refused.value.field == field and said in refused.value.message


def test_a_near_name_is_suggested() -> None:
    """As for commands."""
    with pytest.raises(BadRequest) as refused:
        BY_NAME["queue.set"].decode({"queue": "a", "lease": 5})
    assert refused.value.advice == "Did you mean lease_ms?"


def test_data_that_is_too_large_is_refused_as_such() -> None:
    """With the code that says so."""
    with pytest.raises(TooLarge) as refused:
        BY_NAME["periodic.set"].decode({"name": "p", "data": b"x" * 65_537})
    assert refused.value.field == "data"


def test_null_in_json_is_a_missing_member_unless_it_is_a_value() -> None:
    """``paused`` takes no null, ``retries`` does."""
    read = arguments(BY_NAME["periodic.set"].args, {"name": "p", "paused": None, "data": {"a": [1, None]}})
    assert read == BY_NAME["periodic.set"].decode({"name": "p", "data": b'{"a":[1,null]}', "format": "json"})
    assert arguments(BY_NAME["queue.set"].args, {"queue": "q", "retries": None}).retries is None


def test_half_a_surrogate_pair_is_refused_in_json() -> None:
    """It could not be sent any further."""
    with pytest.raises(BadRequest) as refused:
        arguments(BY_NAME["queue.get"].args, {"queue": "\ud800"})
    assert refused.value.field == "queue"


@pytest.mark.parametrize("data", [b"1\x00", "1".encode("utf-16"), "\ufeff1".encode(), b"NaN"])
def test_only_json_in_utf_8_is_shown_as_it_is(data: bytes) -> None:
    """Other bytes that a decoder of JSON would accept are base64, because an answer must be JSON in UTF-8."""
    assert data_member("result", data, None)[0] == "result_base64"


def test_all_settings_are_shown_and_rates_in_units() -> None:
    """Whole numbers stay whole."""
    shown = json_text(shown_settings(Queue(rate=2_500, key_rate=7_000)))
    assert all(f'"{name}":' in shown for name in SETTINGS)
    assert '"rate":2.5,' in shown and '"key_rate":7,' in shown


IDS = [make_id(1, partition, 0, 0) for partition in range(3)]
SPLIT = [
    (ENQUEUE, Enqueue(runs=[NewRun(one, SOME_BODY) for one in IDS], w=2)),
    (COMPLETE, Complete(items=[Completion(one, 1, 5, None, None) for one in IDS])),
    (CANCEL_TASKS, CancelTasks(ids=IDS, claimed=True)),
]


@pytest.mark.parametrize(("operation", "args"), SPLIT, ids=[one.name for one, _ in SPLIT])
def test_a_part_of_a_request_has_some_items_and_everything_else(operation: Operation[Any, Any], args: Any) -> None:
    """The whole request is its own part."""
    items = operation.items
    assert items is not None
    part = items.part(args, [0, 2])
    assert [id_of(one) for one in items.of(part)] == [IDS[0], IDS[2]]
    assert items.part(args, [0, 1, 2]) is args
    assert [id_of(one) for one in items.of(args)] == IDS
    rest = {name: value for name, value in asdict(args).items() if name != items.argument}
    assert rest.items() <= asdict(part).items()


def test_a_refused_run_names_its_tasks_and_any_other_item_has_its_error() -> None:
    """As the leaders answer."""
    error = {"code": "not_leader"}
    _, complete = SPLIT[1]
    assert COMPLETE.items is not None and CANCEL_TASKS.items is not None
    assert COMPLETE.items.refused(complete.items[0], error) == [[IDS[0], 1, error]]
    assert CANCEL_TASKS.items.refused(IDS[0], error) == error


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.items], ids=lambda one: one.name)
def test_items_are_an_argument_of_their_operation(operation: Operation[Any, Any]) -> None:
    """And it runs at leaders."""
    assert operation.items is not None and operation.items.argument in operation.members
    assert operation.place is Place.LEADER
