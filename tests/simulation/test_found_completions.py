"""A leader finds the completion of a task on too few nodes: other tasks wait until a majority has it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio
from attrs import evolve

from onyxq.core.errors import OnyxqError, StoreFailed, Unknown
from onyxq.core.facts import COMPLETED, Completion, Row, completion_row, first_of, pack_task, task_row
from onyxq.core.ids import Run, TaskId, make_id, partition_of, stretch_of
from onyxq.leader.cohort import pending_facts
from onyxq.leader.cohort.replication import WRITE_TIMEOUT_S
from onyxq.leader.completions import SETTLE_EVERY_S
from onyxq.leader.grants.claims_here import claim_here
from onyxq.leader.state.states import State
from onyxq.operations.service import Service
from onyxq.store.interface import Batch
from simulation.search.facts_calm import settle, work
from simulation.search.facts_clients import MAKER
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import QUEUE
from simulation.search.facts_node import FactsNode, SearchClock, Sync
from tests.simulation.test_keyed_rows import commit
from tests.simulation.test_late_completions import follow, lead


def store(facts: Facts, node: FactsNode, row: Row) -> None:
    """Have a node store a row that no leader sent."""
    node.procedures.start(node.store.write(Batch(rows=[row])))
    commit(facts, node)


def task(facts: Facts, *, number: int = 0, key: str = "", partition: int = 0) -> Row:
    """Return the row of a task."""
    header = {"queue": QUEUE, **({"ordering_key": key} if key else {})}
    return task_row(make_id(facts.start_ms, partition, MAKER, number), pack_task(header, [b""]))


def task_everywhere(facts: Facts, *, number: int = 0, key: str = "") -> TaskId:
    """Return a task that all nodes have."""
    row = task(facts, number=number, key=key)
    for node in facts.living():
        store(facts, node, row)
    return first_of(row.key)


def completion(facts: Facts, task_id: TaskId) -> Row:
    """Return the completion of a task by an earlier leader."""
    token = facts.course.replica.position
    return completion_row(task_id, Completion(token, 1, COMPLETED, facts.start_ms, []))


def begin_move(facts: Facts, *, members: Sequence[FactsNode], target: Sequence[FactsNode]) -> None:
    """Have the partition move from members to a target, under the epoch in which nodes lead it."""
    (placed,) = facts.found.partitions.values()
    moving = evolve(
        placed,
        members=tuple(sorted(node.node_id for node in members)),
        target=tuple(sorted(node.node_id for node in target)),
    )
    facts.course.replica = facts.found = evolve(facts.found, partitions=facts.found.partitions.set(0, moving))
    for node in facts.living():
        node.replica = facts.found


def moving(clock: SearchClock) -> tuple[Facts, FactsNode, list[FactsNode], list[FactsNode]]:
    """Return a cluster whose partition moves: its leader, which stays, the members that go, and those that come."""
    facts = Facts(clock, Random(1), nodes=5, partitions=1)
    (leader,) = (node for node in facts.living() if 0 in node.leaders)
    ahead, member, *new = (node for node in facts.living() if node is not leader)
    begin_move(facts, members=[leader, ahead, member], target=[leader, *new])
    return facts, leader, [ahead, member], new


def may_settle(leader: FactsNode) -> bool:
    """Return whether the leader may make the target the members."""
    leading = leader.leaders[0]
    return leading.ready and leading._may_settle(leading.placed)


def is_finished(node: FactsNode, task_id: TaskId) -> bool:
    """Return whether a node has the completion of a task."""
    return bool(node.store.finished_bits(stretch_of(task_id)))


def outcome(facts: Facts, leader: FactsNode, task_id: TaskId) -> str | None:
    """Return the outcome of a task, as its leader reports it to nodes with tasks that wait for it."""
    said = ask(leader, task_id)
    work(facts)
    return said[0]


def outcome_now(facts: Facts, leader: FactsNode, task_id: TaskId) -> str | None:
    """Return the outcome that a leader reports before it hears of any other node."""
    said = ask(leader, task_id)
    commit(facts, leader)
    return said[0]


def ask(leader: FactsNode, task_id: TaskId) -> list[str | None]:
    """Ask a leader for the outcome of a task, which is added to the returned list."""
    said: list[str | None] = []

    async def outcomes() -> None:
        said.extend(await leader.operations.dependencies.outcomes([task_id], leader.node_id))

    leader.procedures.start(outcomes())
    return said


def grants(leader: FactsNode, facts: Facts) -> list[TaskId]:
    """Return the tasks that a claimer gets."""
    got: list[TaskId] = []

    async def claim() -> None:
        ((answer,), _) = await claim_here(leader, [([QUEUE], 10, 60_000, "w", 0)], 0)
        assert not isinstance(answer, OnyxqError)
        got.extend(granted.first for granted in answer)

    leader.procedures.start(claim())
    work(facts)
    return got


def begin_slow_write(facts: Facts, leader: FactsNode, other: FactsNode, row: Row) -> Sync:
    """Have a leader store a row of another node; return the write, which the disk has begun."""
    leader.procedures.start(leader.leaders[partition_of(first_of(row.key))].keep(other.node_id, [row]))
    settle(facts, leader)
    leader.commit()
    settle(facts, leader)
    write, leader.disk.pending = leader.disk.pending, None
    assert write is not None
    return write


def find_nowhere(facts: Facts, leader: FactsNode, other: FactsNode, row: Row) -> None:
    """Have the leader find a completion that its disk refuses; its check of that waits for the other nodes' answers."""

    async def refused() -> None:
        with pytest.raises(StoreFailed):
            await leader.leaders[0].keep(other.node_id, [row])

    leader.procedures.start(refused())
    settle(facts, leader)
    leader.commit()
    settle(facts, leader)
    leader.disk.end(refused=True, lands=False)
    settle(facts, leader)
    facts.wait(SETTLE_EVERY_S)
    commit(facts, leader)


def test_a_completion_that_a_serving_leader_finds_counts_once_a_majority_has_it() -> None:
    """The leader writes it again. Without that, the others would lack it until they are compared again."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        task_id = task_everywhere(facts)
        leader = lead(facts)
        assert leader.leaders[0].backed
        other = next(name for name in facts.nodes if name != leader.node_id)
        leader.procedures.start(leader.leaders[0].keep(other, [completion(facts, task_id)]))
        commit(facts, leader)
        assert is_finished(leader, task_id) and outcome(facts, leader, task_id) == "unfinished"
        for _ in range(3):
            facts.wait(SETTLE_EVERY_S)
            work(facts)
        assert outcome(facts, leader, task_id) == "completed"
        assert all(is_finished(node, task_id) for node in facts.living())

    trio.run(scene, clock=clock)


def test_a_completion_that_is_stored_slowly_is_not_taken_for_one_that_is_stored_nowhere() -> None:
    """The disk refused it before. The leader checks that while it finds the completion once more."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        task_id = task_everywhere(facts)
        leader = lead(facts)
        row = completion(facts, task_id)
        ahead = next(node for node in facts.living() if node is not leader)
        find_nowhere(facts, leader, ahead, row)
        write = begin_slow_write(facts, leader, ahead, row)
        work(facts)
        write.over.end()
        work(facts)
        assert is_finished(leader, task_id) and outcome(facts, leader, task_id) == "unfinished"
        facts.wait(SETTLE_EVERY_S)
        work(facts)
        assert outcome(facts, leader, task_id) == "completed"

    trio.run(scene, clock=clock)


def test_a_completion_that_a_takeover_finds_counts_once_the_nodes_before_it_are_compared_again() -> None:
    """A node that was equal before the leader merged the completion lacks it since."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        task_id = task_everywhere(facts)
        work(facts)
        (leader,) = (node for node in facts.living() if 0 in node.leaders)
        equal, ahead, *_ = (node for node in facts.living() if node is not leader)
        store(facts, ahead, completion(facts, task_id))
        follow(facts, leader, equal)
        follow(facts, leader, ahead)
        assert leader.leaders[0].ready and is_finished(leader, task_id) and not is_finished(equal, task_id)
        assert outcome(facts, leader, task_id) == "unfinished"
        follow(facts, leader, equal)
        assert is_finished(equal, task_id) and outcome(facts, leader, task_id) == "completed"

    trio.run(scene, clock=clock)


def test_a_completion_that_is_stored_slowly_during_a_takeover_counts_once_the_nodes_are_compared_again() -> None:
    """A majority of the nodes is equal to the leader, which then serves, while the write is under way."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        task_id = task_everywhere(facts)
        work(facts)
        (leader,) = (node for node in facts.living() if 0 in node.leaders)
        first, second, ahead, _ = (node for node in facts.living() if node is not leader)
        write = begin_slow_write(facts, leader, ahead, completion(facts, task_id))
        follow(facts, leader, first)
        follow(facts, leader, second)
        assert leader.leaders[0].ready and not is_finished(leader, task_id)
        write.over.end()
        work(facts)
        assert is_finished(leader, task_id) and outcome(facts, leader, task_id) == "unfinished"
        follow(facts, leader, first)
        follow(facts, leader, second)
        assert outcome(facts, leader, task_id) == "completed"

    trio.run(scene, clock=clock)


def test_a_comparison_that_began_before_a_completion_was_found_does_not_count() -> None:
    """The leader sends a node the rows that it lacks. The completion is not among them yet."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        task_id = task_everywhere(facts)
        work(facts)
        (leader,) = (node for node in facts.living() if 0 in node.leaders)
        equal, ahead, *_ = (node for node in facts.living() if node is not leader)
        store(facts, leader, task(facts, number=1))
        leader.procedures.start(leader.follow(leader.leaders[0], equal))
        while not any(message.method == "cohort.push" for message in facts.mail):
            work(facts)
            facts.wait(0.1)
            settle(facts, leader)
        leader.procedures.start(leader.leaders[0].keep(ahead.node_id, [completion(facts, task_id)]))
        commit(facts, leader)
        follow(facts, leader, ahead)
        assert leader.leaders[0].ready and not is_finished(equal, task_id)
        assert outcome(facts, leader, task_id) == "unfinished"
        follow(facts, leader, equal)
        assert is_finished(equal, task_id) and outcome(facts, leader, task_id) == "completed"

    trio.run(scene, clock=clock)


def test_the_next_task_of_the_key_waits_until_a_majority_has_the_found_completion() -> None:
    """A next leader might not know the completion, and would grant the task again beside the next one."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        first, second = (task_everywhere(facts, number=number, key="k0") for number in range(2))
        leader = lead(facts)
        other = next(name for name in facts.nodes if name != leader.node_id)
        leader.procedures.start(leader.leaders[0].keep(other, [completion(facts, first)]))
        commit(facts, leader)
        assert is_finished(leader, first) and grants(leader, facts) == []
        facts.wait(SETTLE_EVERY_S)
        work(facts)
        assert grants(leader, facts) == [second]

    trio.run(scene, clock=clock)


def test_a_move_ends_once_new_copies_have_what_the_takeover_found_on_a_member() -> None:
    """The new copies were compared before the leader merged the completion, which a majority of the members has."""
    clock = SearchClock()

    async def scene() -> None:
        facts, leader, (ahead, member), new = moving(clock)
        task_id = task_everywhere(facts)
        for node in (ahead, member):
            store(facts, node, completion(facts, task_id))
        for node in (*new, ahead):
            follow(facts, leader, node)
        assert leader.leaders[0].ready and outcome(facts, leader, task_id) == "completed"
        assert not any(is_finished(node, task_id) for node in new) and not may_settle(leader)
        for node in new:
            assert not may_settle(leader)
            follow(facts, leader, node)
        assert all(is_finished(node, task_id) for node in new) and may_settle(leader)

    trio.run(scene, clock=clock)


def test_a_move_does_not_end_while_a_completion_that_the_takeover_found_is_stored() -> None:
    """It would count once a majority of the old members has it. The partition might settle then without it."""
    clock = SearchClock()

    async def scene() -> None:
        facts, leader, (ahead, member), new = moving(clock)
        task_id = task_everywhere(facts)
        work(facts)
        write = begin_slow_write(facts, leader, ahead, completion(facts, task_id))
        for node in (*new, member):
            follow(facts, leader, node)
        assert leader.leaders[0].ready and not may_settle(leader)
        write.over.end()
        work(facts)
        for node in new:
            assert not may_settle(leader)
            follow(facts, leader, node)
        assert all(is_finished(node, task_id) for node in new) and may_settle(leader)

    trio.run(scene, clock=clock)


def test_a_move_ends_once_new_copies_have_the_pending_rows_that_the_takeover_found() -> None:
    """Pending rows of transactions are in no digest, so the new copies seemed complete without them."""
    clock = SearchClock()

    async def scene() -> None:
        facts, leader, (ahead, _), new = moving(clock)
        part = pending_facts.Part(facts.course.replica.log_time_ms + 600_000, b"digest", "t")
        rows = pending_facts.pending_rows(0, part, [b"body"])
        ahead.procedures.start(ahead.store.write(Batch(pending=rows)))
        commit(facts, ahead)
        for node in new:
            follow(facts, leader, node)

        async def call(method: str, args: dict[str, Any]) -> dict[str, Any]:
            assert method == "cohort.pending"
            return ahead.cohort.pending(**args)

        leader.procedures.start(leader.leaders[0]._share_pending(ahead.node_id, call))
        commit(facts, leader)
        assert leader.store.pending(0, rows[0].transaction) == rows
        follow(facts, leader, ahead)
        assert leader.leaders[0].ready
        for node in new:
            assert not may_settle(leader)
            follow(facts, leader, node)
        assert may_settle(leader)

    trio.run(scene, clock=clock)


def test_a_completion_that_a_serving_leader_finds_during_a_move_counts_once_new_copies_have_it() -> None:
    """They become the members when the partition settles, and a next leader may be one of them."""
    clock = SearchClock()

    async def scene() -> None:
        facts, leader, (ahead, _), new = moving(clock)
        task_id = task_everywhere(facts)
        assert lead(facts) is leader
        leader.procedures.start(leader.leaders[0].keep(ahead.node_id, [completion(facts, task_id)]))
        commit(facts, leader)
        assert may_settle(leader) and is_finished(leader, task_id)
        assert outcome(facts, leader, task_id) == "unfinished"
        facts.wait(SETTLE_EVERY_S)
        work(facts)
        assert outcome(facts, leader, task_id) == "completed"
        assert all(is_finished(node, task_id) for node in new)

    trio.run(scene, clock=clock)


@pytest.mark.parametrize("another", ["task", "completion of another partition"])
def test_the_check_of_a_completion_that_is_stored_nowhere_waits_for_no_other_writes(another: str) -> None:
    """A big copy of another partition, or of tasks, would otherwise hold it up."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=10)
        task_id = task_everywhere(facts)
        leader = lead(facts)
        ahead = next(node for node in facts.living() if node is not leader)
        second = max(leader.leaders)
        row = task(facts, number=1)
        if another != "task":
            assert second
            row = completion(facts, first_of(task(facts, number=1, partition=second).key))
        find_nowhere(facts, leader, ahead, completion(facts, task_id))
        write = begin_slow_write(facts, leader, ahead, row)
        work(facts)
        assert not leader.leader_state.any_in(State.UNSETTLED, [Run(task_id, 1)])
        write.over.end()
        work(facts)

    trio.run(scene, clock=clock)


def test_a_completion_that_a_lost_node_offers_counts_once_a_majority_has_it() -> None:
    """After its partition was forced, it may have what no other node has. The other nodes do not answer at first."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=3, partitions=1)
        task_id = task_everywhere(facts)
        leader = lead(facts)
        others = [node for node in facts.living() if node is not leader]
        service = Service(leader, random_64=lambda: 1)
        refused: list[Unknown] = []

        async def offer() -> None:
            with pytest.raises(Unknown) as caught:
                await service.peer_methods["lead.offer"]({"partition": 0, "rows": [[*completion(facts, task_id)]]})
            refused.append(caught.value)

        leader.procedures.start(offer())
        commit(facts, leader)
        assert is_finished(leader, task_id) and outcome_now(facts, leader, task_id) == "unfinished"
        facts.wait(2 * WRITE_TIMEOUT_S)
        settle(facts, leader)
        assert refused and outcome_now(facts, leader, task_id) == "unfinished"
        for _ in range(3):
            work(facts)
            facts.wait(SETTLE_EVERY_S)
        work(facts)
        assert outcome(facts, leader, task_id) == "completed"
        assert all(is_finished(node, task_id) for node in others)

    trio.run(scene, clock=clock)
