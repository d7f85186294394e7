"""The searches of facts: leaders keep their promises step by step, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import trio

from onyxq.core.replica import Partition
from onyxq.leader.state.states import State
from simulation.checkers import Broken
from simulation.planted.bugs_facts import FACT_BUGS
from simulation.planted.bugs_moves import MOVE_BUGS
from simulation.planted.planted import Planted
from simulation.planted.seams import faulty
from simulation.probes import MOVES, Probes
from simulation.search.facts import FactsSearch
from simulation.search.facts_calm import calm, work
from simulation.search.facts_clients import Clients
from simulation.search.facts_model import Task
from simulation.search.facts_node import SearchClock
from simulation.search.facts_states import PAIRS, alone, during, follows
from simulation.search.moves.cluster import COPIES, MovingFacts, unsettled_copies
from simulation.search.moves.model import MovesModel
from simulation.search.moves.search import MovesSearch
from simulation.search.transactions.search import TransactionsSearch
from simulation.workloads import WORKLOADS

QUICK = [planted for planted in FACT_BUGS if planted.quick]
COMMON = (
    alone(State.GRANTING),
    during(State.FINISHING, State.UNSETTLED),
    during(State.HOLDING_KEY, State.GRANTING),
    during(State.RETURNING, State.FINISHING),
    follows(State.FINISHING, State.UNSETTLED),
)


@pytest.mark.long
def test_leaders_keep_their_promises() -> None:
    """``onyxq simulate --workload facts --seed N`` plays one of the runs again."""
    probes = Probes(PAIRS)
    for seed in range(1, 16):
        run = FactsSearch(seed).run()
        assert run.broken is None, f"seed {seed}: {run.broken}"
        probes.add(run.probes)
    assert not {*COMMON} & {*probes.unreached()}, probes.table()


@pytest.mark.long
def test_many_runs_keep_them() -> None:
    """Other seeds, long enough for rarer orders of events."""
    for seed in range(1_000, 1_050):
        run = FactsSearch(seed).run(8_000)
        assert run.broken is None, f"seed {seed}: {run.broken}"


@pytest.mark.parametrize("search", [FactsSearch, MovesSearch, TransactionsSearch])
def test_the_same_seed_makes_the_same_run(search: type[FactsSearch]) -> None:
    """Equal moves, equal bytes in the log: a seed is enough to play a run again."""
    first, second = (search(3).run(1_000) for _ in range(2))
    assert first.actions == second.actions and first.steps == second.steps
    assert [record.data for record in first.course.records] == [record.data for record in second.course.records]


@pytest.mark.parametrize("name", ["facts", "facts_moves", "facts_transactions"])
def test_it_is_a_workload(name: str) -> None:
    """So runs from many seeds can be played side by side."""
    assert WORKLOADS[name].play(2).applied > 20


@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found_soon(planted: Planted) -> None:
    """A few runs find it, in seconds."""
    with faulty(planted.faults):
        assert any(FactsSearch(seed).run().broken for seed in range(1, planted.quick + 1))


@pytest.mark.long
@pytest.mark.parametrize("planted", [one for one in FACT_BUGS if not one.quick], ids=lambda planted: planted.name)
def test_a_rare_planted_bug_is_found(planted: Planted) -> None:
    """More runs find it."""
    with faulty(planted.faults):
        assert any(FactsSearch(seed).run().broken for seed in range(1, planted.runs + 1))


# --- moves


class Moving:
    """A cluster of five nodes with one partition, and its clients; ``probes`` counts what was reached."""

    def __init__(self, clock: SearchClock) -> None:
        self.probes = Probes(MOVES)
        self.facts = facts = MovingFacts(clock, Random(1), nodes=5, partitions=1, reached=self.probes.reached)
        self.model = MovesModel(
            disks=lambda: {name: node.disk.tables for name, node in facts.nodes.items()},
            reached=self.probes.reached,
            replica=facts.found,
        )
        facts.course.checkers = (self.model,)
        self.clients = Clients(facts, self.model, Random(1), 1, heard=1.0)
        self.rest()

    @property
    def placed(self) -> Partition:
        """The partition's place by the last record."""
        return self.facts.course.replica.partitions[0]

    def rest(self) -> None:
        """Let all nodes that do not stay away do what there is to do."""
        calm(self.facts, self.clients, self.model, differences=unsettled_copies)
        self.model.look()

    def enqueue(self) -> Task:
        """Return a new task that is acknowledged; a request may find no leader."""
        self.clients.enqueue()
        *_, task = self.model.tasks.values()
        for _ in range(20):
            work(self.facts)
            if task.acked:
                return task
            self.clients.again(task)
        raise AssertionError("the task is not acknowledged")


def play(scene: Callable[[Moving], None]) -> None:
    """Play a scene."""
    clock = SearchClock()

    async def main() -> None:
        scene(Moving(clock))

    trio.run(main, clock=clock)


def test_a_drained_node_drops_its_copy_once_the_partition_has_settled() -> None:
    """A node without a copy takes its place; all tasks are on the new members."""

    def scene(moving: Moving) -> None:
        drained = moving.placed.members[0]
        moving.enqueue()
        moving.facts.drain(drained)
        moving.rest()
        assert drained not in moving.placed.members and len(moving.placed.members) == COPIES
        assert moving.facts.nodes[drained].store.partitions() == []
        assert moving.probes.counts["a partition settled on other nodes"] >= 1

    play(scene)


def test_a_lost_task_of_a_forced_partition_is_found_again_when_its_nodes_are_back() -> None:
    """The model expects no more of it meanwhile. The nodes offer their rows before they drop them."""

    def scene(moving: Moving) -> None:
        facts = moving.facts
        kept, *lost = moving.placed.members
        facts.send_away(facts.nodes[kept])
        for _ in range(30):  # the others serve without it
            _compare(moving)
        task = moving.enqueue()
        for name in lost:
            facts.send_away(facts.nodes[name])
        facts.gone.discard(kept)
        for _ in range(5):
            work(facts)
            facts.wait(0.1)
        facts.force(0)
        assert moving.probes.counts["a partition was forced"] == 1 and not task.acked
        for _ in range(60):
            _compare(moving)
        facts.gone.clear()
        moving.rest()
        assert moving.probes.counts["a node offered rows that its leader lacked"] >= 1
        assert len(task.grants) == 1

    play(scene)


def _compare(moving: Moving) -> None:
    """Let nodes work, and leaders compare their copies once."""
    work(moving.facts)
    for node in moving.facts.living():
        for leader in list(node.leaders.values()):
            for other in node.behind(leader):
                node.procedures.start(node.follow(leader, moving.facts.nodes[other]))
    moving.facts.wait(0.1)


def test_a_task_that_most_members_lack_breaks_the_search() -> None:
    """The check sees the disks, whatever leaders believe."""

    def scene(moving: Moving) -> None:
        moving.enqueue()
        first, second, _ = moving.placed.members
        for name in (first, second):
            moving.facts.nodes[name].disk.tables.stretch.clear(b"")
        with pytest.raises(Broken, match="enough copies"):
            moving.model.look()

    play(scene)


@pytest.mark.long
def test_moves_lose_nothing() -> None:
    """``onyxq simulate --workload facts_moves --seed N`` plays one of the runs again."""
    probes = Probes(MovesSearch.probed)
    for seed in range(1, 41):
        run = MovesSearch(seed).run()
        assert run.broken is None, f"seed {seed}: {run.broken}"
        probes.add(run.probes)
    assert not {*MOVES} & {*probes.unreached()}, probes.table()


@pytest.mark.long
@pytest.mark.parametrize("planted", MOVE_BUGS, ids=lambda planted: planted.name)
def test_a_planted_bug_of_moves_is_found(planted: Planted) -> None:
    """It breaks a run within its number of seeds."""
    with faulty(planted.faults):
        assert any(MovesSearch(seed).run().broken for seed in range(1, planted.runs + 1))
