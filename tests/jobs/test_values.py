"""Encoded segments are equal after decoding, or are refused with the path of the wrong part."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import zoneinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.jobs.values import Unfit, pack, pack_key, to_json, unpack, unpack_all
from onyxq.jobs.windows import time_of
from tests.jobs.generated_values import scalars, values

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Colour(enum.IntEnum):
    """A subclass of int that is not one."""

    RED = 1


Pair = collections.namedtuple("Pair", "one two")  # a user's own


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal with the same types in all parts; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, (float, decimal.Decimal)):
        return str(one) == str(other)
    zones = not isinstance(one, datetime.datetime) or (one.tzinfo, one.fold) == (other.tzinfo, other.fold)
    return zones and bool(one == other)


@settings(max_examples=300)
@given(values())
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    """Microseconds, all digits and the zone are kept."""
    assert alike(unpack(pack(value)), value)


@given(st.lists(values(), max_size=5))
def test_segments_are_read_one_after_the_other(found: list[Any]) -> None:
    """A file of segments is read that way before its columns are known."""
    import io

    assert alike(list(unpack_all(io.BytesIO(b"".join(map(pack, found))))), found)


@settings(max_examples=300)
@given(values())
def test_json_gives_a_value_back_or_refuses_it(value: Any) -> None:
    """It never turns a key into a string or a tuple into a list silently."""
    try:
        text = to_json(pack(value))
    except Unfit:
        return
    assert alike(json.loads(text), value)


def test_numbers_of_numpy_become_pythons() -> None:
    """Equal ones, with all their digits."""
    numpy = pytest.importorskip("numpy")
    for value, wanted in (
        (numpy.int64(-5), -5),
        (numpy.uint64(2**64 - 1), 2**64 - 1),
        (numpy.float32(0.1), float(numpy.float32(0.1))),
        (numpy.float64(0.1), 0.1),
        (numpy.bool_(True), True),
        (numpy.str_("x"), "x"),
    ):
        assert alike(unpack(pack({"a": [value]})), {"a": [wanted]})


def test_subclasses_of_dict_become_dicts() -> None:
    """In the order of their keys."""
    for value in (collections.OrderedDict(b=1, a=2), collections.Counter("aab"), collections.defaultdict(list, x=[1])):
        assert alike(unpack(pack(value)), dict(value))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1j, "a segment cannot hold a complex; segments hold None, bool"),
        ({"a": [0, {"b": Colour.RED}]}, r"a\[1\].b: a segment cannot hold a .*Colour; return its value"),
        ({Colour.RED: 1}, "cannot hold a .*Colour; return its value"),
        ([Pair(1, 2)], r"\[0\]: a segment cannot hold a .*Pair; return a tuple or a dict of it"),
        ({"t": datetime.time(1, tzinfo=datetime.UTC)}, "t: a segment cannot hold a time of day with a zone"),
        ({"s": "\ud800"}, "s: the text .* is not valid Unicode"),
        ({"l": {1, (2, object)}}, "l.*: a segment cannot hold a type"),
    ],
)
def test_what_no_segment_holds_is_refused_by_its_path(value: Any, said: str) -> None:
    """The error has the path, the type, and what to do."""
    with pytest.raises(Unfit, match=said):
        pack(value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_what_is_too_deep_is_refused(kind: Any) -> None:
    """At once, however deep it is."""
    value: Any = kind([1])
    for _ in range(3_000):
        value = kind([value])
    with pytest.raises(Unfit, match="too deep"):
        pack(value)


def test_an_array_of_numpy_is_refused_with_a_way_out() -> None:
    """The error suggests a list of the same values."""
    numpy = pytest.importorskip("numpy")
    with pytest.raises(Unfit, match=r"a: a segment cannot hold a numpy.ndarray; call its tolist\(\)"):
        pack({"a": numpy.zeros(2)})
    with pytest.raises(Unfit, match="numpy.datetime64"):
        pack(numpy.datetime64("2020"))


def test_equal_keys_have_equal_bytes() -> None:
    """Whatever their digits, zones and order."""
    noon = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
    for one, other in (
        (decimal.Decimal("1.0"), decimal.Decimal("1.000")),
        (decimal.Decimal("-0"), decimal.Decimal("0E+5")),
        (noon, noon.astimezone(BERLIN)),
        ({"a": 1, "b": [noon]}, {"b": [noon.astimezone(BERLIN)], "a": 1}),
        ((decimal.Decimal("5"), {1, 2}), (decimal.Decimal("5.0"), {2, 1})),
        (-0.0, 0.0),
    ):
        assert one == other and pack_key(one) == pack_key(other)
    for one, other in ((1, True), (1, 1.0), ("1", 1), (noon, noon.replace(tzinfo=None))):
        assert pack_key(one) != pack_key(other)


@given(scalars().filter(lambda value: value == value if not isinstance(value, decimal.Decimal) else not value.is_nan()))
def test_a_key_comes_back_equal(value: Any) -> None:
    """The key is part of a window's output."""
    found = unpack(pack_key(value))
    assert found == value


def test_a_time_may_be_a_datetime() -> None:
    """It is converted to milliseconds; a datetime without a zone is UTC."""
    when = datetime.datetime(1970, 1, 1, 1, 0, 0, 2_999, tzinfo=BERLIN)
    assert time_of(lambda segment: segment, when) == 2
    assert time_of(lambda segment: segment, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000)) == -1
