"""Arguments of tasks: valid types, their JSON, and the errors of others."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import pytest

from onyxq.errors import BadRequest
from onyxq.worker.arguments import Arguments
from onyxq.worker.retries import ResultRefused

Customer = NewType("Customer", str)


class Color(enum.Enum):
    """An enum."""

    RED = "red"
    BLUE = "blue"


class Address(TypedDict):
    """A typed dict."""

    city: str
    street: NotRequired[str]


@dataclasses.dataclass
class Item:
    """A dataclass."""

    name: str
    price: decimal.Decimal
    colors: set[Color] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Lot(Item):
    """A dataclass with one more field."""

    size: int = 1


DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
NUMBER = uuid.UUID(int=7)

FITS: list[tuple[Any, Any]] = [
    (int, 5),
    (int, True),
    (float, 5),
    (bool, False),
    (str, "ä"),
    (None, None),
    (Any, {"a": [1, None]}),
    (Customer, "c"),
    (Annotated[int, "how many"], 3),
    (int | None, None),
    (list[int] | str, [1, 2]),
    (Literal["a", 2], 2),
    (list[str], ["a"]),
    (list, [1, "a"]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"b", "a"}),
    (frozenset[int], frozenset({1})),
    (dict[str, list[int]], {"a": [1]}),
    (Mapping[str, int], {"a": 1}),
    (Sequence[Color], [Color.RED, Color.BLUE]),
    (bytes, b"\x00\xff"),
    (datetime.date, DAY),
    (datetime.datetime, MOMENT),
    (datetime.time, MOMENT.timetz()),
    (uuid.UUID, NUMBER),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (Address, {"city": "Bonn"}),
    (Item, Item("pen", decimal.Decimal("0.5"), {Color.RED})),
    (uuid.UUID | str, "no number"),
    (bytes | None, b"raw"),
    (int | float, 1.5),
    (datetime.date | datetime.datetime, MOMENT),
    (list[Item | Lot], [Lot("pen", decimal.Decimal(1)), Item("cup", decimal.Decimal(2))]),
    (list[Item | None], [None, Item("cup", decimal.Decimal(2))]),
]


def arguments_of(hint: Any) -> Arguments:
    """Return the checked arguments of a function with one annotated argument."""

    def send(value: Any) -> None:
        """A task."""

    send.__annotations__ = {"value": hint, "return": hint}
    return Arguments(send, "send")


@pytest.mark.parametrize(("hint", "value"), FITS, ids=[str(hint) for hint, _ in FITS])
def test_what_fits_arrives_as_it_was_given(hint: Any, value: Any) -> None:
    """They are sent as JSON; so are results."""
    arguments = arguments_of(hint)
    call = json.loads(arguments.call((value,), {}))
    assert call["task"] == "send"
    ((arrived,), _) = arguments.read(call["args"], call["kwargs"])
    assert (arrived, type(arrived)) == (value, type(value))
    assert arguments.returned(arguments.result(value)) == value


WRONG: list[tuple[Any, Any, str, str]] = [
    (int, "5", "", "must be int, not str"),
    (bool, 1, "", "must be bool, not int"),
    (str, None, "", "must be str, not NoneType"),
    (int | None, "x", "", "must be int or None, not str"),
    (Literal["a", "b"], "c", "", "must be one of 'a', 'b', not 'c'"),
    (list[int], (1, "a"), "[1]", "must be int, not str"),
    (list[int], {1}, "", "must be list, not set"),
    (tuple[int, str], (1,), "", "must have 2 items, not 1"),
    (dict[str, int], {"a": "b"}, ".a", "must be int, not str"),
    (dict[str, int], {1: 2}, "", "has the key 1; in JSON keys are strings"),
    (Color, "red", "", "must be Color, not str"),
    (bytes, "text", "", "must be bytes, not str"),
    (datetime.date, MOMENT, "", "must be date, not datetime"),
    (Address, {"street": "x"}, ".city", "is missing"),
    (Address, {"city": "x", "town": "y"}, ".town", "is not a field of Address"),
    (Item, {"name": "pen"}, "", "must be Item, not dict"),
    (Item, Lot("pen", decimal.Decimal(1), size=3), "", "must be Item, not Lot: its field 'size' would not arrive"),
    (str | bytes, b"raw", "", "would arrive as str: as JSON, str and bytes are alike"),
    (uuid.UUID | str, str(NUMBER), "", "would arrive as UUID: as JSON, UUID and str are alike"),
    (list[Item], [Item("pen", 5)], "[0].price", "must be Decimal, not int"),  # type: ignore[arg-type]  # the point
]


@pytest.mark.parametrize(("hint", "value", "path", "problem"), WRONG, ids=str)
def test_what_does_not_fit_is_named(hint: Any, value: Any, path: str, problem: str) -> None:
    """The error has the argument, the place in it, the expected and the found type."""
    with pytest.raises(BadRequest) as caught:
        arguments_of(hint).call((value,), {})
    assert caught.value.message == f"send: argument 'value{path}' {problem}"
    assert caught.value.field == f"args.value{path}"


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), [object()]])
def test_what_is_no_json_is_named_although_nothing_is_annotated(value: Any) -> None:
    """It could not be stored."""
    with pytest.raises(BadRequest, match="argument 'value' is not JSON") as caught:
        arguments_of(Any).call((value,), {})
    assert caught.value.field == "args.value"


class Plain:
    """A class that cannot be sent."""


@pytest.mark.parametrize(
    ("hint", "value", "place"),
    [
        (Plain, Plain(), ""),
        (list[Plain], [Plain()], " at value[0]"),
        (Any, {"a": [1, {}], "day": [None, {"of": Plain()}]}, " at value.day[1].of"),
    ],
)
def test_the_part_that_is_no_json_is_named(hint: Any, value: Any, place: str) -> None:
    """An annotation with its class is not advised if the argument has it."""
    with pytest.raises(BadRequest) as caught:
        arguments_of(hint).call((value,), {})
    assert caught.value.message == f"send: argument 'value' is not JSON: it contains a value of type Plain{place}"
    assert caught.value.advice.startswith("Annotate it" if hint is Any else "Make Plain a dataclass")


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "args.to"),
        (("x",), {"to": "y"}, "args.to"),
        (("x",), {"too": "y"}, "args.too"),
        (("x", "y", 1, 2), {}, "args"),
        (("x",), {"copies": "2"}, "args.copies"),
    ],
)
def test_the_shape_of_a_call_is_checked(args: tuple[Any, ...], kwargs: dict[str, Any], field: str) -> None:
    """Arguments may be missing, given twice, unknown, or too many."""

    def send(to: str, body: str = "", *, copies: int = 1) -> None:
        """A task."""

    with pytest.raises(BadRequest) as caught:
        Arguments(send, "send").call(args, kwargs)
    assert caught.value.field == field
    if field == "args.too":
        assert caught.value.message == "send: there is no argument 'too'; did you mean to?"


def test_an_unknown_argument_is_told_before_a_missing_one() -> None:
    """The message and the field name the same argument."""
    with pytest.raises(BadRequest) as caught:
        arguments_of(int).call((), {"c": 2})
    assert (caught.value.message, caught.value.field) == ("send: there is no argument 'c'", "args.c")


def test_any_number_of_arguments_is_checked_one_by_one() -> None:
    """This is for arguments after one star and after two."""

    def add(*numbers: int, **labels: str) -> None:
        """A task."""

    arguments = Arguments(add, "add")
    assert arguments.read([1, 2], {"a": "x"}) == ([1, 2], {"a": "x"})
    with pytest.raises(BadRequest, match=r"numbers\[1\]"):
        arguments.call((1, "2"), {})
    with pytest.raises(BadRequest, match="'b' must be str"):
        arguments.call((), {"a": "x", "b": 5})


def test_what_arrives_is_checked_as_well() -> None:
    """They may come from another program, in any form."""
    arguments = arguments_of(list[Color])
    for value in ("red", ["green"], [1], {"a": 1}):
        with pytest.raises(BadRequest, match="'value"):
            arguments.read([value], {})
    with pytest.raises(BadRequest, match="is not a date"):
        arguments_of(datetime.date).read(["yesterday"], {})
    with pytest.raises(BadRequest, match="its stored result does not fit"):
        arguments.returned(b"{")


def test_annotations_that_cannot_be_resolved_check_nothing() -> None:
    """They may be for type checkers only."""

    def send(to: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        """A task."""

    call = json.loads(Arguments(send, "send").call((5,), {}))
    assert call == {"task": "send", "args": [5], "kwargs": {}}


def test_a_result_that_does_not_fit_is_told() -> None:
    """The error says that the function has run, and what to return instead."""
    begin = "send has run, but its result cannot be stored: "
    with pytest.raises(ResultRefused, match=rf"{begin}result\[0\] must be int"):
        arguments_of(list[int]).result(["a"])
    with pytest.raises(ResultRefused, match=rf"{begin}it is not JSON: .* type set. Annotate .* -> set\[str\]"):
        arguments_of(Any).result({1})
    with pytest.raises(ResultRefused, match="has the key 1; .* Return text as the keys"):
        arguments_of(dict[int, str]).result({1: "a"})
    with pytest.raises(ResultRefused, match="keys must be .* Return text as the keys"):
        arguments_of(Any).result({(1, 2): "a"})
    assert arguments_of(set[int]).result({1}) == b"[1]"


def test_arguments_stay_where_they_were_given() -> None:
    """They are sent by place or by name; the worker's version of the function adds defaults."""

    def send(to: str, body: str = "", *rest: int, copies: int = 1, **more: str) -> None:
        """A task."""

    arguments = Arguments(send, "send")
    for args, kwargs in (
        (("a",), {"body": "b"}),
        ((), {"body": "b", "to": "a"}),
        (("a", "b", 1, 2), {"copies": 3, "x": "y"}),
    ):
        call = json.loads(arguments.call(args, kwargs))
        assert (call["args"], call["kwargs"]) == (list(args), kwargs)
        assert arguments.read(call["args"], call["kwargs"]) == (list(args), kwargs)


def test_a_call_with_wrong_arguments_gets_the_signature() -> None:
    """The hint shows the arguments with their defaults."""

    def send(to: str, text: str = "hello") -> None:
        """A task."""

    for args, kwargs in (((), {}), (("a", "b", "c"), {}), (("a",), {"txt": "b"})):
        with pytest.raises(BadRequest) as refused:
            Arguments(send, "send").call(args, kwargs)
        assert refused.value.advice == "Call it as send(to, text='hello')."
