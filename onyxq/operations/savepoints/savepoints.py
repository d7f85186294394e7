"""Operations on savepoints: a client makes, lists and deletes them, and the host of a job reports that one is made.

Each change is one entry. The entries hold no files: the Spark host of the job copies them, and asks its peer for the
savepoints that it has to make.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from log_entries import begin_savepoint, drop_savepoint, keep_savepoint
from log_entries.begin_savepoint import Savepoint, savepoint_of, savepoints
from log_entries.drop_savepoint import why_dropped
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Conflict, NotFound, OnyxqError, Superseded
from onyxq.core.jobs import lifetime
from onyxq.node.node import Node
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.operation import Done
from onyxq.operations.table.savepoint import (
    ALL_SAVEPOINTS,
    DELETE_SAVEPOINT,
    DROP_SAVEPOINT,
    KEEP_SAVEPOINT,
    LIST_SAVEPOINTS,
    MAKE_SAVEPOINT,
    AllSavepoints,
    DeleteSavepoint,
    DropSavepoint,
    KeepSavepoint,
    ListSavepoints,
    MakeSavepoint,
    SavepointView,
)
from onyxq.operations.table.savepoint import Savepoints as SavepointList


class Savepoints:
    """The methods about savepoints of a node. ``catch_up``: reads the log to its present end."""

    def __init__(self, node: Node, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._node = node
        self._catch_up = catch_up

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(MAKE_SAVEPOINT, self.make),
            served(LIST_SAVEPOINTS, self.list),
            served(DELETE_SAVEPOINT, self.delete),
            served(ALL_SAVEPOINTS, self.all),
            served(KEEP_SAVEPOINT, self.keep),
            served(DROP_SAVEPOINT, self.drop),
        )

    async def find(self, name: str) -> Savepoint | None:
        """Return a savepoint; an unknown one is looked up after reading the whole log."""
        if savepoint_of(self._node.replica, name) is None:
            await self._catch_up()
        return savepoint_of(self._node.replica, name)

    # --- clients

    async def make(self, args: MakeSavepoint) -> SavepointView:
        """Begin a savepoint and wait until it is complete; raises `NotFound`, `BadRequest`, `Conflict`, `Unavailable`.

        Nothing is stored for a request that is refused. If the savepoint cannot be made, its name is free again.
        """
        entry = begin_savepoint.Args(args.name, args.id, args.request)
        _, (verdict,), replica = await self._node.stepped([entry])
        known = savepoint_of(replica, args.name)
        if known is None or verdict not in (APPLIED, begin_savepoint.REPEAT):
            raise _refused(args, verdict, known)
        with trio.move_on_after(args.wait_ms / 1000):
            while not self._made(args, known.position).complete:
                await self._node.moved()
        return _view(args.name, self._made(args, known.position))

    def _made(self, args: MakeSavepoint, position: int) -> Savepoint:
        """Return a savepoint that was begun at a position; raises `Conflict` if it has been dropped."""
        replica = self._node.replica
        found = savepoint_of(replica, args.name)
        if found is not None and found.position == position:
            return found
        why = why_dropped(replica, args.name, position) or "it was deleted"
        raise Conflict(
            f"savepoint {args.name} of job {args.id} was not made: {why}",
            field="id",
            hint="The name is free again. If the job still runs, repeat the command.",
        )

    async def list(self, args: ListSavepoints) -> SavepointList:
        """Return the savepoints of one job or of all."""
        return self._listed(args.id)

    async def delete(self, args: DeleteSavepoint) -> Done:
        """Remove a savepoint; raises `NotFound`, and `Conflict` while a job has still to begin from it."""
        known = await self.find(args.name)
        verdict = drop_savepoint.UNKNOWN
        if known is not None:
            _, (verdict,) = await self._node.verdicts(
                [drop_savepoint.Args(args.name, known.position, "it was deleted")]
            )
        if verdict == drop_savepoint.UNKNOWN:
            raise NotFound(
                f"there is no savepoint {args.name!r}", field="name", hint="List all savepoints: onyxq job savepoints."
            )
        if verdict.startswith(drop_savepoint.IN_USE):
            job = verdict.removeprefix(drop_savepoint.IN_USE)
            raise Conflict(
                f"job {job} has still to begin from savepoint {args.name}",
                field="name",
                hint=f"Wait until the job has committed a batch, or kill it: onyxq job kill {job}.",
            )
        return Done()

    # --- hosts of Spark

    async def all(self, args: AllSavepoints) -> SavepointList:
        """Return all savepoints as this node knows them."""
        return self._listed(None)

    def _listed(self, job: str | None) -> SavepointList:
        replica = self._node.replica
        found = [_view(name, one) for name, one in savepoints(replica).items() if job in (None, one.job)]
        cluster = "" if replica.cluster is None else replica.cluster.id
        return SavepointList(cluster=cluster, position=replica.position, savepoints=found)

    async def keep(self, args: KeepSavepoint) -> Done:
        """Complete a savepoint; raises `Superseded` or `Conflict` if it is not this driver's to complete."""
        entry = keep_savepoint.Args(
            name=args.name,
            position=args.position,
            version=args.version,
            batch=args.batch,
            offsets=args.offsets,
            place=args.place,
            size_bytes=args.size_bytes,
        )
        return await self._reported(entry)

    async def drop(self, args: DropSavepoint) -> Done:
        """Drop a savepoint that its driver cannot make; raises `Superseded`, or `Conflict` if it may not be dropped."""
        return await self._reported(drop_savepoint.Args(args.name, args.position, args.why, args.version))

    async def _reported(self, entry: keep_savepoint.Args | drop_savepoint.Args) -> Done:
        _, (verdict,) = await self._node.verdicts([entry])
        if verdict == lifetime.SUPERSEDED:
            raise Superseded(f"version {entry.version} of the driver may not report any more", field="version")
        if verdict not in (APPLIED, keep_savepoint.REPEAT):
            raise Conflict(f"the report about savepoint {entry.name} is refused: {verdict}", field="name")
        return Done()


def _view(name: str, one: Savepoint) -> SavepointView:
    return SavepointView(
        name=name,
        job=one.job,
        state="complete" if one.complete else "making",
        batch=one.batch,
        at_ms=one.at_ms,
        size_bytes=one.size_bytes if one.complete else None,
        place=one.place or None,
        position=one.position,
    )


def _refused(args: MakeSavepoint, verdict: str, known: Savepoint | None) -> OnyxqError:
    """Return the error that a verdict means to a client that asks for a savepoint."""
    if verdict == begin_savepoint.TAKEN:
        whose = "" if known is None else f": after batch {known.batch} of job {known.job}"
        return Conflict(
            f"there is a savepoint {args.name} already{whose}",
            field="name",
            hint=f"Choose another name, or delete it: onyxq job savepoint-delete {args.name}.",
        )
    if verdict == lifetime.UNKNOWN:
        return NotFound(f"there is no job {args.id!r}", field="id", hint="List all jobs: onyxq job list.")
    said = {
        lifetime.OVER: ("has ended", f"Submit a job that resumes it: --resume {args.id}."),
        begin_savepoint.NO_DRIVER: ("does not run: no peer drives it", f"See why: onyxq job show {args.id}."),
        begin_savepoint.NO_BATCH: ("has committed no batch yet", "Repeat the command after its first batch."),
    }
    if verdict in said:
        what, hint = said[verdict]
        return Conflict(f"job {args.id} {what}, so it cannot have a savepoint", field="id", hint=hint)
    return BadRequest(verdict, field=verdict.partition(" ")[0])
