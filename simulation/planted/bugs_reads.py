"""Planted bugs of reads that ask all leaders: which answers count, and for which partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from attrs import evolve

from onyxq.node.all_leaders import AllLeaders, Look, Part, Round
from simulation.planted.planted import Planted
from simulation.planted.seams import instead

_LookHere = Callable[[AllLeaders, dict[str, object], Mapping[int, int], Look], Awaitable[Part]]


def _each_for_all(original: Callable[[Round], list[Part]]) -> Callable[[Round], list[Part]]:
    return lambda asked: [evolve(part, partitions=sorted(asked.plan.partitions)) for part in original(asked)]


def _under_any_epoch(
    original: Callable[[AllLeaders, Mapping[int, int]], list[int]],
) -> Callable[[AllLeaders, Mapping[int, int]], list[int]]:
    def leads(looks: AllLeaders, epochs: Mapping[int, int]) -> list[int]:
        led = {number: looks._node.leaders.get(number) for number in epochs}
        return original(looks, {number: one.epoch if one is not None else 0 for number, one in led.items()})

    return leads


def _silent_about_promises(original: _LookHere) -> _LookHere:
    async def look_here(looks: AllLeaders, args: dict[str, object], epochs: Mapping[int, int], look: Look) -> Part:
        return evolve(await original(looks, args, epochs, look), past=[])

    return look_here


def _anybody(cohort: Collection[str], told: Collection[str]) -> bool:
    return bool(cohort) and bool(told)


READ_BUGS: tuple[Planted, ...] = (
    Planted(
        "the answers of the leaders count for all partitions",
        "onyxq.node.all_leaders:Round.parts",
        _each_for_all,
        "counts and lists lack partitions that moved meanwhile",
        "looked_at",
        quick=2,
    ),
    Planted(
        "a leader answers for a partition under any epoch",
        "onyxq.node.all_leaders:AllLeaders._leads",
        _under_any_epoch,
        "a partition that moved is counted at both leaders",
        "looked_at",
    ),
    Planted(
        "an answer counts without a check of promises",
        "onyxq.node.all_leaders:majority",
        instead(_anybody),
        "a leader that does not know that it was deposed answers without rows of its successor",
        "behind_the_times",
        quick=2,
    ),
    Planted(
        "later promises are not reported",
        "onyxq.node.all_leaders:AllLeaders._look",
        _silent_about_promises,
        "a deposed leader without access to the log answers without rows of its successor",
        "behind_the_times",
        quick=6,
    ),
)
"""The planted bugs of such reads."""
