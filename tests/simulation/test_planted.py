"""Planted bugs: every seam exists, and a few bugs are found here; ``onyxq simulate --planted`` searches for all."""

from __future__ import annotations

import pytest
import trio

from log_entries import force_partition
from onyxq.core import replica
from onyxq.core.errors import OnyxqError
from onyxq.leader.cohort.replication import Vote
from onyxq.leader.leader import PartitionLeader
from simulation.planted.bugs import PLANTED, Planted
from simulation.planted.seams import Fault, NotPlanted, check, faulty, instead, returning
from simulation.planted.suite import look_for
from simulation.workloads import WORKLOADS

QUICK = [planted for planted in PLANTED if planted.quick]
MAJORITY = "onyxq.core.replica:majority"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_bug_has_a_seam_that_is_used_and_a_fault_that_fits(planted: Planted) -> None:
    """A rename, or another parameter, is reported with the name of the bug, without a run."""
    for path, fault in planted.faults:
        check(path, fault)
    assert planted.workload in WORKLOADS and planted.breaks


def test_names_are_unique_and_there_are_enough() -> None:
    """Names identify the bugs in the table."""
    assert len({planted.name for planted in PLANTED}) == len(PLANTED) >= 20


@pytest.mark.parametrize(
    "path", ["onyxq.core.nothing:majority", "onyxq.core.replica:most", "onyxq.core.replica:Replica.majority"]
)
def test_a_seam_that_does_not_exist_is_reported(path: str) -> None:
    """Otherwise the bug would seem to be planted."""
    with pytest.raises(NotPlanted, match=f"{path}: no such seam"):
        check(path, returning(True))


def test_an_inherited_method_is_no_seam_of_the_heir() -> None:
    """The fault would apply to one subclass only, or to all: name the class that defines the method."""
    with pytest.raises(NotPlanted, match="no such seam"):
        check("onyxq.store.store:Store.moved", returning(None))


def test_a_name_that_nothing_uses_is_reported() -> None:
    """A constant is used where it was imported: its seam is there."""
    with pytest.raises(NotPlanted, match="nothing uses this name"):
        check("onyxq.history.recovery.new_replica:SEGMENTS_AHEAD", instead(0))


@pytest.mark.parametrize("fault", [instead(lambda cohort: True), instead(lambda cohort, have, *, wanted: True)])
def test_a_fault_that_takes_other_arguments_is_reported(fault: Fault) -> None:
    """Otherwise its error during a run would count as a bug that was found."""
    with pytest.raises(NotPlanted, match="the fault does not take the arguments"):
        check(MAJORITY, fault)


def test_a_definition_is_replaced_in_every_module_that_imported_it_and_put_back() -> None:
    """Modules have names of their own for the function; modules of planted bugs see the original."""
    original = replica.majority
    with faulty([(MAJORITY, returning("always"))]):
        assert replica.majority([], ()) == force_partition.majority([], ()) == "always"
    assert replica.majority is force_partition.majority is original


def test_an_imported_name_is_replaced_in_its_module_only() -> None:
    """So a bug can be limited to one caller."""
    original = replica.majority
    with faulty([("log_entries.force_partition:majority", returning("here"))]):
        assert force_partition.majority([], ()) == "here"
        assert replica.majority is original
    assert force_partition.majority is original


def test_everything_is_put_back_if_a_later_seam_is_missing() -> None:
    """No part of a bug stays in the process."""
    original = replica.majority
    with pytest.raises(NotPlanted), faulty([(MAJORITY, returning(True)), ("onyxq.core.replica:most", returning(1))]):
        pass
    assert replica.majority is original


def test_a_property_stays_a_property_and_a_wrapper_gets_its_function() -> None:
    """Faults of properties have the form of faults of methods."""
    vote = Vote(leader="a", members=["a"], target=["a"], failed=_failed)
    with faulty([("onyxq.leader.cohort.replication:Vote.won", lambda original: lambda vote: [original(vote)])]):
        assert vote.won == [False]
    assert vote.won is False


def test_a_coroutine_function_that_returns_at_once_stays_one() -> None:
    """Its callers await it."""
    with faulty([("onyxq.leader.leader:PartitionLeader._until_flushed", returning(7))]):
        assert trio.run(PartitionLeader._until_flushed, None) == 7


def _failed(node: str, error: OnyxqError) -> None:
    raise error


@pytest.mark.long
@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    """A few short runs find it, usually the first one."""
    verdict = look_for(planted, range(1, planted.quick + 1))
    assert verdict.found, f"{planted.quick} seeds of {planted.workload} do not find it any more"
