"""Functions that jobs may name if credentials are required."""

from __future__ import annotations

import attrs
import pytest

from onyxq.errors import BadRequest
from onyxq.jobs.encoding import REFS
from onyxq.jobs.fields import KINDS
from onyxq.jobs.function_imports import ANY_FUNCTION, Allowed, references
from onyxq.jobs.model import Condition, Job, Predicate, Trigger
from onyxq.spark.functions import resolve


@pytest.mark.parametrize("name", ["os:system", "shop:f", "shopping.jobs:f", "shop.job:f", "jobs.shop.jobs:f", ":f"])
def test_a_function_of_another_module_may_not_be_named(name: str) -> None:
    """Neither the parent package of a named module, nor a module whose name starts alike, is allowed."""
    assert not Allowed(("shop.jobs",)).takes(name)
    assert not Allowed().takes(name)
    assert ANY_FUNCTION.takes(name)


@pytest.mark.parametrize("name", ["shop.jobs:f", "shop.jobs:C.f", "shop.jobs.deep.er:f", "etl:f"])
def test_functions_of_a_named_module_and_its_package_may_be_named(name: str) -> None:
    """All named modules are allowed."""
    assert Allowed(("shop.jobs", "etl")).takes(name)


@pytest.mark.parametrize("name", ["logging:os.system", "logging:sys.exit"])
def test_no_function_is_reached_through_a_module_that_another_one_imports(name: str) -> None:
    """Otherwise a named module would give access to everything that it imports."""
    with pytest.raises(BadRequest, match="is a module of its own"):
        resolve(name)
    assert callable(resolve("logging:Logger.info"))


def test_functions_of_predicates_are_looked_at() -> None:
    """Also those that a trigger combines."""
    trigger = Trigger("w", "punctuation", predicate=Predicate("a:b") | ~Predicate("c:d"))
    condition = Condition("in", ["out"], "e:f")
    job = Job(workflow=[("in", "out")], catalog=[], flow_conditions=[condition], triggers=[trigger])
    assert [name for _, name in references(job)] == ["e:f", "a:b", "c:d"]


def test_every_function_that_a_job_can_hold_is_looked_at() -> None:
    """A field for functions that is missing in the lists would not be checked."""
    holding = {one.name for kind in KINDS for one in attrs.fields(kind) if "Ref" in str(one.type)}
    assert holding and holding <= REFS
