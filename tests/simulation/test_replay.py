"""Replay of a dump with the simulation's checkers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from onyxq.core import snapshot
from onyxq.core.log.interface import Record
from onyxq.core.replica import Replica
from onyxq.history.dump import Dump, write
from onyxq.history.replay import replay as plain
from simulation.checkers import Broken
from simulation.replay import main, replay
from simulation.world.load import Load
from simulation.world.world import Options, World, simulate


@pytest.fixture(scope="module")
def ended() -> World:
    """Return a small cluster that worked for a while."""

    async def workload(world: World) -> None:
        load = Load(world)
        async with trio.open_nursery() as nursery:
            load.start(nursery)
            await trio.sleep(5)
            await load.drain()
            nursery.cancel_scope.cancel()

    return simulate(workload, seed=2, options=Options(partitions=2))


def dumped(world: World, origin: Replica | None = None) -> Dump:
    """Return its log, from the beginning or after a snapshot."""
    start = -1 if origin is None else origin.position
    return Dump("main", origin, [record for record in world.audit.records if record.position > start])


def test_a_sound_log_replays_to_the_replica_of_its_cluster(ended: World) -> None:
    """Every step is checked."""
    last = list(replay(dumped(ended)))[-1].replica
    assert last == ended.audit.replica


def test_a_log_behind_an_origin_is_judged_from_there(ended: World) -> None:
    """Earlier claims are known."""
    half = ended.audit.records[len(ended.audit.records) // 2].position
    origin = [step.replica for step in plain(dumped(ended), half)][-1]
    assert list(replay(dumped(ended, origin)))[-1].replica == ended.audit.replica


def test_a_checker_that_is_not_satisfied_stops_the_replay(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is a checker that always fails."""
    from simulation.checkers.counted_once import CountedOnce

    def step(self: CountedOnce, *_: object) -> None:
        raise self.broken("no")

    monkeypatch.setattr(CountedOnce, "step", step)
    with pytest.raises(Broken, match="records count once"):
        next(replay(dumped(ended)))


def test_the_command_prints_position_and_digest(
    ended: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are those that each live peer reports."""
    write(tmp_path / "log.dump", dumped(ended))
    assert main([str(tmp_path / "log.dump")]) == 0
    said = capsys.readouterr().out
    assert snapshot.digest(ended.audit.replica) in said and f"position {ended.audit.replica.position}" in said
    assert main([str(tmp_path / "log.dump"), "--until", "3"]) == 0
    assert "position 3," in capsys.readouterr().out


def test_bytes_that_are_no_record_are_replayed_over(ended: World) -> None:
    """They change nothing."""
    records = [*ended.audit.records, Record(ended.audit.replica.position + 1, 0, b"garbage")]
    assert list(replay(Dump("main", None, records)))[-1].problem
