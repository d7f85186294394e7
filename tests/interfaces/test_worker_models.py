"""Models of pydantic, msgspec and attrs as arguments and results."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from onyxq.errors import BadRequest
from onyxq.worker.arguments import Arguments
from onyxq.worker.retries import ResultRefused

MOMENT = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
NUMBER = uuid.UUID(int=7)


class Line(pydantic.BaseModel):
    """A pydantic model within another one."""

    article: str = pydantic.Field(alias="Article", min_length=1)
    count: int = 1


class LongLine(Line):
    """A pydantic model with one more field."""

    color: str = "red"


class Shape(pydantic.BaseModel):
    """A pydantic model that is read as the subclass that the data names."""

    kind: str = "shape"

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def choose(cls, value: Any, handler: Callable[[Any], Shape]) -> Shape:
        """Return an instance of the subclass."""
        is_circle = cls is Shape and isinstance(value, dict) and value.get("kind") == "circle"
        return Circle.model_validate(value) if is_circle else handler(value)


class Circle(Shape):
    """A pydantic model with one more field."""

    kind: str = "circle"
    radius: int = 1


class Order(pydantic.BaseModel):
    """A strict pydantic model."""

    model_config = pydantic.ConfigDict(strict=True)

    at: datetime.datetime
    lines: list[Line] = []


class Point(msgspec.Struct):
    """A msgspec model."""

    x: int
    name: bytes = b""
    when: datetime.datetime | None = None


class Spot(Point):
    """A msgspec model with one more field."""

    z: int = 0


@attrs.frozen
class Parcel:
    """An attrs class with a private field."""

    _number: uuid.UUID
    points: list[Point] = attrs.Factory(list)
    weight_g: int = attrs.field(default=0, init=False)


@attrs.frozen
class Crate(Parcel):
    """An attrs class with one more field."""

    wood: str = "oak"


def arguments(annotation: Any) -> Arguments:
    """Return the arguments of a function that takes and returns a value of a type."""

    def function(value: Any) -> Any:
        return value

    function.__annotations__ = {"value": annotation, "return": annotation}
    return Arguments(function, "function")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(at=MOMENT, lines=[Line(Article="tea", count=2)])),
        (Shape, Circle(radius=2)),
        (Point, Point(1, b"\x00", MOMENT)),
        (Parcel, Parcel(NUMBER, [Point(1), Point(2)])),
        (Point | Parcel, Parcel(NUMBER)),
        (list[Order] | None, [Order(at=MOMENT)]),
        (dict[str, Parcel], {"a": Parcel(NUMBER)}),
        (tuple[Point, Line], (Point(3), Line(Article="tea"))),
    ],
)
def test_a_model_arrives_as_it_was_sent(annotation: Any, value: Any) -> None:
    """This is so for arguments and results, nested ones included."""
    of = arguments(annotation)
    call = json.loads(of.call((value,), {}))
    assert of.read(call["args"], call["kwargs"]) == ([value], {})
    assert of.returned(of.result(value)) == value


@pytest.mark.parametrize(
    ("annotation", "value", "field", "problem"),
    [
        (Order, {"at": "now"}, "value", "must be Order, not dict"),
        (Point, Point("one"), "value.x", "Expected `int`, got `str`"),  # type: ignore[arg-type]
        (Parcel, Parcel("7"), "value._number", "must be UUID, not str"),  # type: ignore[arg-type]
        (Line, LongLine(Article="tea"), "value", "must be Line, not LongLine: its field 'color' would not arrive"),
        (Point, Spot(1), "value", "must be Point, not Spot: its field 'z' would not arrive"),
        (Parcel, Crate(NUMBER), "value", "must be Parcel, not Crate: its field 'wood' would not arrive"),
        (
            Line | LongLine,
            LongLine(Article="tea"),
            "value",
            "would arrive as Line: as JSON, Line and LongLine are alike",
        ),
        (LongLine | Line, Line(Article="tea"), "value", "would arrive as LongLine"),
        (Any, Order(at=MOMENT), "value", "contains a value of type Order"),
        (Any, [Parcel(NUMBER)], "value", "contains a value of type Parcel"),
    ],
)
def test_a_value_that_does_not_fit_is_named_when_it_is_enqueued(
    annotation: Any, value: Any, field: str, problem: str
) -> None:
    """The hint lists what can be sent."""
    with pytest.raises(BadRequest, match=problem) as refused:
        arguments(annotation).call((value,), {})
    assert refused.value.field == f"args.{field}"
    assert annotation is not Any or "pydantic, msgspec and attrs models" in refused.value.advice


@pytest.mark.parametrize(
    ("annotation", "stored", "field"),
    [
        (Order, {"at": "today"}, "value.at"),
        (Order, {"at": MOMENT.isoformat(), "lines": [{"Article": ""}]}, "value.lines[0].Article"),
        (Point, {"x": 1, "name": "no base64!"}, "value.name"),
        (Point, {}, "value"),
        (Parcel, {"points": []}, "value._number"),
        (Parcel, {"_number": str(NUMBER), "size": 1}, "value.size"),
    ],
)
def test_stored_arguments_that_no_longer_fit_are_named(annotation: Any, stored: Any, field: str) -> None:
    """A call may be older than the model."""
    with pytest.raises(BadRequest) as refused:
        arguments(annotation).read([stored], {})
    assert refused.value.field == f"args.{field}"


def test_a_result_that_is_not_json_names_its_type() -> None:
    """Without an annotation a model cannot be stored."""
    with pytest.raises(ResultRefused, match="it is not JSON: it contains a value of type Point"):
        arguments(Any).result(Point(1))
