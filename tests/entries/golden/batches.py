"""The golden log of batches: committed, repeated, refused, and a group without a job."""

from __future__ import annotations

from log_entries import commit_batch, grant_claims, kill_job, ready_partition, settle_transactions, submit_job
from onyxq.core.ids import Run, make_id
from onyxq.core.log.interface import Record
from onyxq.core.transactions import Claim, Part, Prepared
from tests.entries.world import START_MS, World, creation

FIRST = make_id(START_MS, 0, 7, 0)
RUN = Run(FIRST, 4)


def batch_log() -> list[Record]:
    """Make a log in which a job commits batches; those of other drivers and late ones are refused."""
    world = World()
    world.submit("founder", creation(partitions=2))
    world.join("a")
    world.settle("a")
    for number, placed in sorted(world.now.partitions.items()):
        world.submit("a", ready_partition.Args(number, placed.epoch))
    world.submit("a", submit_job.Args("j", b"body", bytes(16), "balanced", 0, 1, 1, (), (), "", (), (), False, 0))
    version = world.now.jobs["j"].version
    epoch = world.now.partitions[0].epoch
    world.submit("a", grant_claims.Args(0, epoch, (grant_claims.Grant("job/j", 60_000, (RUN,)),)))
    token = world.now.position
    deadline_ms = world.now.log_time_ms + 60_000

    def share(name: str, *claims: Claim, parts: tuple[int, ...] = (1,)) -> Prepared:
        return Prepared(name, deadline_ms, claims, (), tuple(Part(number, 1, b"d") for number in parts), 9_000, b"n")

    def batch(number: int, *shares: Prepared, at: int = version, offsets: bytes = b"here") -> commit_batch.Args:
        return commit_batch.Args("j", at, number, offsets, shares)

    done = share("done", Claim(0, token, (RUN,)), parts=(0,))
    stale = share("stale", Claim(0, token + 1, (RUN,)), parts=(0,))
    world.submit(
        "a", batch(3, share("x"), stale), batch(3, share("x"), share("x")), batch(-1), batch(3, at=version - 1)
    )
    world.submit("a", batch(3, share("x"), done), batch(3, share("y")), batch(3, offsets=b"there"), batch(5))
    world.submit("a", settle_transactions.Args(("done",), 0, epoch), batch(4, share("x")), batch(4, share("y")))
    group = commit_batch.Args("", 0, 0, b"", (share("group", parts=()), share("z")))
    world.submit("a", group, group, commit_batch.Args("", 0, 0, b"", ()))
    world.submit("a", kill_job.Args("j"), batch(5), commit_batch.Args("k", version, 0, b"", ()))
    return world.records
