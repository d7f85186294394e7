"""Flow conditions: the tasks to which a segment is sent, and its form there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.jobs.flow_conditions import compiled, routes
from onyxq.jobs.model import Condition, Function, Input, Job, Output, Ref
from onyxq.jobs.predicates import Predicate

TASKS = ("children", "adults", "athletes", "everyone")


def resolve(ref: Ref, place: str) -> Callable[..., Any]:
    """Return the function itself."""
    assert callable(ref), place
    return ref


def job(*conditions: Condition, source: str = "people") -> Job:
    """Return a job that sends people to four tasks."""
    return Job(
        workflow=[("in", source), *((source, to) for to in TASKS)],
        catalog=[Input("in", queue="q"), Function(source, "a:b"), *(Output(to, queue=to) for to in TASKS)],
        flow_conditions=conditions,
    )


def sent(segment: Any, *conditions: Condition, old: Any = None, all_new: Sequence[Any] = ()) -> dict[str, Any]:
    """Return what each task gets of a segment."""
    found = routes(compiled(job(*conditions), "people", resolve), segment, all_new, old)
    assert len({to for to, _ in found}) == len(found)
    return dict(found)


def child(segment: Any, most: int = 17) -> bool:
    """A predicate with a parameter."""
    return bool(segment["age"] <= most)


def athlete(segment: Any) -> bool:
    """A predicate."""
    return bool(segment.get("job") == "athlete")


def has_bits(mask: int, segment: dict[str, int]) -> bool:
    """A predicate for random combinations of conditions."""
    return bool(segment["bits"] & mask)


def test_without_conditions_a_segment_goes_everywhere() -> None:
    """The workflow alone decides."""
    assert list(sent({"age": 3})) == list(TASKS)
    assert list(sent({"age": 3}, Condition("in", ["people"], child))) == list(TASKS)


def test_what_holds_is_united() -> None:
    """Each true condition adds its tasks; a segment without a true condition goes nowhere."""
    conditions = (Condition("people", ["adults"], ~Predicate(child)), Condition("people", ["athletes"], athlete))
    assert list(sent({"age": 40, "job": "athlete"}, *conditions)) == ["adults", "athletes"]
    assert list(sent({"age": 40}, *conditions)) == ["adults"]
    assert sent({"age": 4}, *conditions) == {}


def test_predicates_take_parameters() -> None:
    """Parameters are passed by name."""
    condition = Condition("people", ["children"], Predicate(child, {"most": 5}))
    assert list(sent({"age": 5}, condition)) == ["children"]
    assert not sent({"age": 6}, condition)


def test_predicates_combine_and_ask_no_further_than_needed() -> None:
    """``&`` stops at the first false predicate, ``|`` at the first true one."""
    asked: list[str] = []

    def says(name: str, answer: bool) -> Predicate:
        return Predicate(lambda segment: asked.append(name) or answer)

    when = (says("a", False) & says("b", True)) | (says("c", True) | says("d", True)) & ~says("e", False)
    assert list(sent({}, Condition("people", ["adults"], when))) == ["adults"]
    assert asked == ["a", "c", "e"]


def test_a_predicate_may_see_where_a_segment_came_from() -> None:
    """With ``whole``, predicates also get the original segment and all segments made of it."""

    def first(segment: Any, old: Any, all_new: Sequence[Any], word: str) -> bool:
        return segment == all_new[0] and old == word

    condition = Condition("people", ["adults"], Predicate(first, {"word": "a b"}, whole=True))
    assert sent("a", condition, old="a b", all_new=["a", "b"]) == {"adults": "a"}
    assert sent("b", condition, old="a b", all_new=["a", "b"]) == {}


def test_excluded_fields_are_seen_by_predicates_and_then_gone() -> None:
    """Exclusions of all true conditions are united; the task's own segment is unchanged."""
    segment = {"age": 40, "job": "athlete", "secret": 1, "why": 2}
    conditions = (
        Condition("people", ["adults"], lambda one: one["secret"] == 1, exclude=("secret",)),
        Condition("people", ["athletes"], athlete, exclude=("why",)),
        Condition("people", ["children"], child, exclude=("age",)),
    )
    left = {"age": 40, "job": "athlete"}
    assert sent(segment, *conditions) == {"adults": left, "athletes": left}
    assert segment["secret"] == 1
    assert sent("no map", Condition("people", ["adults"], exclude=("age",))) == {"adults": "no map"}


def test_the_first_that_short_circuits_ends_the_search() -> None:
    """Conditions that short-circuit may send to ``all`` or ``none``."""
    conditions = (
        Condition("people", "all", athlete, short_circuit=True),
        Condition("people", "none", child, short_circuit=True, exclude=("age",)),
        Condition("people", ["adults"]),
    )
    assert list(sent({"age": 3, "job": "athlete"}, *conditions)) == list(TASKS)
    assert sent({"age": 3}, *conditions) == {}
    assert sent({"age": 30}, *conditions) == {"adults": {"age": 30}}


def handler(**changes: Any) -> Condition:
    """A condition for value errors."""
    return Condition(
        "people",
        ["everyone"],
        lambda error: isinstance(error, ValueError),
        exceptions=True,
        short_circuit=True,
        transform=lambda segment, error: {"of": segment, "why": str(error), "secret": 1},
        **changes,
    )


def test_an_exception_becomes_a_segment() -> None:
    """Only conditions for exceptions are asked, and ``transform`` makes the new segment."""
    found = sent(ValueError("bad"), handler(exclude=("secret",)), Condition("people", ["adults"]), old={"age": 1})
    assert found == {"everyone": {"of": {"age": 1}, "why": "bad"}}


def test_an_exception_that_nobody_takes_is_raised() -> None:
    """This holds without conditions for exceptions and if none is true."""
    error = KeyError("age")
    for conditions in ((), (Condition("people", ["adults"]),), (handler(),)):
        with pytest.raises(KeyError) as caught:
            sent(error, *conditions)
        assert caught.value is error


def test_an_exception_may_be_dropped() -> None:
    """A condition that sends it nowhere handles it too."""
    drop = Condition("people", "none", exceptions=True, short_circuit=True)
    assert sent(ValueError(), drop) == {}
    assert list(sent({"age": 1}, drop)) == list(TASKS)


def test_where_only_exceptions_go_nothing_else_does() -> None:
    """A task for exceptions gets no segments, unless a condition sends them."""
    assert list(sent({"age": 1}, handler())) == ["children", "adults", "athletes"]
    assert list(sent({"age": 1}, handler(), Condition("people", ["everyone"]))) == ["everyone"]


def broken(segment: Any) -> bool:
    """A predicate that fails for people without an age."""
    return bool(segment["age"] > 17)


def test_a_segment_at_which_a_predicate_raises_goes_to_its_errors_only() -> None:
    """It goes as a map of strings without excluded fields, and no further condition is asked."""
    conditions = (
        Condition("people", ["children"]),
        Condition("people", ["adults"], broken, errors_to=["everyone"], exclude=("secret",)),
        Condition("people", ["athletes"], lambda one: pytest.fail("asked")),
    )
    found = sent({"name": "Ann", "secret": 1}, *conditions)
    assert found == {"everyone": {"task": "people", "error": "KeyError: 'age'", "segment": '{"name":"Ann"}'}}
    odd = object()
    assert sent({"odd": odd}, *conditions)["everyone"]["segment"] == repr({"odd": odd}), "no segment can hold it"


def test_a_transform_makes_the_segment_of_a_predicate_that_raises() -> None:
    """It is the one for exceptions of functions, and ``all`` and ``none`` are destinations as well."""
    changes: dict[str, Any] = {"transform": lambda segment, error: [segment, repr(error)]}
    told = [{}, "KeyError('age')"]
    found = sent({}, Condition("people", ["adults"], broken, errors_to="all", **changes))
    assert found == dict.fromkeys(TASKS, told)
    assert sent({}, Condition("people", ["adults"], broken, errors_to="none")) == {}
    assert list(sent({"age": 20}, Condition("people", ["adults"], broken, errors_to=["everyone"]))) == ["adults"]


def test_a_predicate_that_raises_without_errors_fails_the_task() -> None:
    """``errors_to`` of another condition does not take its exception."""
    conditions = (
        Condition("people", ["athletes"], athlete, errors_to=["everyone"]),
        Condition("people", ["adults"], broken),
    )
    with pytest.raises(KeyError):
        sent({}, *conditions)


def test_a_predicate_of_exceptions_may_raise_as_well() -> None:
    """The map then has the segment that the task got, and the tasks of ``errors_to`` get nothing else."""
    condition = Condition(
        "people", "none", lambda error: error.code == 5, exceptions=True, short_circuit=True, errors_to=["everyone"]
    )
    found = sent(ValueError("bad"), condition, old={"n": 1})
    assert found["everyone"]["error"] == "AttributeError: 'ValueError' object has no attribute 'code'"
    assert found["everyone"]["segment"] == '{"n":1}'
    assert list(sent({"n": 1}, condition)) == ["children", "adults", "athletes"]


def test_a_condition_from_all_is_of_every_task_that_has_such_edges() -> None:
    """Tasks that lack one of the edges do not ask it."""
    one = Condition("all", ["adults"], child)
    assert list(sent({"age": 1}, one)) == ["adults"]
    assert routes(compiled(job(one), "in", resolve), {"age": 99}) == [("people", {"age": 99})]
    other = Condition("all", "none", child, short_circuit=True, errors_to=["adults"])
    assert routes(compiled(job(other), "in", resolve), {"age": 1}) == [("people", {"age": 1})]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.sets(st.sampled_from(TASKS)), st.booleans(), st.sets(st.sampled_from("abc"))),
        max_size=5,
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    st.integers(0, 15),
)
def test_routes_are_as_defined(
    said: list[tuple[int, set[str], bool, set[str]]], segment: dict[str, int], bits: int
) -> None:
    """Random conditions give the same routes as a literal implementation of the definition."""
    segment = {**segment, "bits": bits}
    conditions = [
        Condition("people", sorted(to), partial(has_bits, mask), exclude=sorted(out), short_circuit=last)
        for mask, to, last, out in said
    ]
    holding = [(to, last, out) for mask, to, last, out in said if bits & mask]
    stop = next((place for place, (_, last, _) in enumerate(holding) if last), len(holding))
    asked = holding[: stop + 1]
    to = {name for names, _, _ in asked for name in names}
    excluded = {name for _, _, names in asked for name in names}
    left = {name: value for name, value in segment.items() if name not in excluded}
    expected = dict.fromkeys(sorted(to), left) if said else dict.fromkeys(sorted(TASKS), segment)
    assert dict(sorted(sent(segment, *conditions).items())) == expected
