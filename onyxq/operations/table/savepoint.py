"""Operations on savepoints of jobs: make, list and delete them, and what the Spark host of a job reports."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from onyxq.core.limits import INT_MAX, MOMENT, NAME_CHARACTERS_MAX, OFFSETS_BYTES_MAX, PLAIN
from onyxq.operations.table.access import everywhere
from onyxq.operations.table.job import ID_CHARS_MAX, WAIT_MS_MAX, JobId
from onyxq.operations.table.operation import Args, Done, Http, Operation, Result, Verb
from onyxq.operations.table.transaction import BATCH_MAX, DRIVERS

ERROR_CHARS_MAX = 2_000
PLACE_CHARS_MAX = 4_096
SavepointName: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=ID_CHARS_MAX,
        pattern=PLAIN,
        description="Name of the savepoint: letters, digits, `.`, `_` and `-`; a letter or digit first.",
    ),
]
Position: TypeAlias = Annotated[
    int, Meta(ge=0, le=INT_MAX, description="Position of the entry that began it; with the name it identifies it.")
]


class SavepointView(Result):
    """A savepoint of a job."""

    name: str
    job: str
    state: Annotated[
        Literal["making", "complete"], Meta(description="`making` until its files are there; then `complete`.")
    ]
    batch: Annotated[
        int,
        Meta(description="The batch after which jobs continue from it. While it is `making`: this one or a later one."),
    ]
    at_ms: Annotated[int, Meta(description="When it was complete; before that, when it was begun.", extra=MOMENT)]
    size_bytes: Annotated[int | None, Meta(description="Size of its files; null until it is complete.")]
    place: Annotated[str | None, Meta(description="Folder of its files, a path or URI; null until it is complete.")]
    position: Position


class Savepoints(Result):
    """Savepoints, sorted by name."""

    cluster: Annotated[str, Meta(description="Id of the cluster.")]
    position: Annotated[int, Meta(description="Position of the replica in the log.")]
    savepoints: list[SavepointView]


class MakeSavepoint(Args):
    """Make a savepoint of a running job.

    The job is not stopped. The answer comes once the savepoint is complete, or after ``wait_ms`` in the state
    ``making``. The same request again waits for the same savepoint. A savepoint stays until it is deleted. No job can
    take over the state of ``Frame`` and ``Sql`` tasks from it.
    """

    id: JobId
    name: SavepointName
    request: Annotated[
        str,
        Meta(
            max_length=NAME_CHARACTERS_MAX,
            pattern=PLAIN,
            description="Name of the request: a repeat under the same name returns the same savepoint, also once it is "
            "complete. Another request for a name that is taken is refused.",
        ),
    ] = ""
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="Longest wait.")] = 30_000


class ListSavepoints(Args):
    """Return the savepoints, sorted by name."""

    id: Annotated[JobId | None, Meta(description="Only savepoints of this job.")] = None


class DeleteSavepoint(Args):
    """Delete a savepoint.

    It is refused while a job has still to begin from it. The files are deleted by the next host of Spark that runs a
    job at the same place.
    """

    name: SavepointName


class AllSavepoints(Args):
    """Return the savepoints to make, and those whose files stay. For hosts of Spark."""


class KeepSavepoint(Args):
    """Report that the files of a savepoint are at their place. For hosts of Spark."""

    name: SavepointName
    position: Position
    version: Annotated[int, Meta(ge=0, le=INT_MAX, description="Version of the driver.")]
    batch: Annotated[int, Meta(ge=0, le=BATCH_MAX, description="The batch after which jobs continue from it.")]
    offsets: Annotated[bytes, Meta(min_length=1, max_length=OFFSETS_BYTES_MAX, description="As for `jobs.commit`.")]
    place: Annotated[str, Meta(min_length=1, max_length=PLACE_CHARS_MAX, description="Folder of its files.")]
    size_bytes: Annotated[int, Meta(ge=0, le=INT_MAX, description="Size of its files.")]


class DropSavepoint(Args):
    """Report that a savepoint cannot be made. For hosts of Spark."""

    name: SavepointName
    position: Position
    version: Annotated[int, Meta(ge=0, le=INT_MAX, description="Version of the driver.")]
    why: Annotated[str, Meta(max_length=ERROR_CHARS_MAX, description="The reason, for the client that waits.")]


_RUN, _TAG = "onyxq.interfaces.cli.jobs", "jobs"
_SOME = {"name": "before-2.1", "position": 4711, "version": 4700}

MAKE_SAVEPOINT = Operation(
    name="job.savepoint",
    args=MakeSavepoint,
    result=SavepointView,
    access=everywhere("operate"),
    http=Http(
        verb="POST",
        path="/v1/jobs/{id}/savepoints",
        id="make_savepoint",
        tag=_TAG,
        status=201,
        errors=(404, 409),
        waits=True,
    ),
    verbs=(
        Verb(
            name="job savepoint",
            about="save the state of a running job under a name, without stopping it",
            example="visits before-2.1",
            fields=("id", "name"),
            run=f"{_RUN}:job_savepoint",
            more=((("--timeout",), {"metavar": "TIME", "help": "longest wait; then exit with code 6 (default: 10m)"}),),
        ),
    ),
    python="savepoint_job",
    python_left_out=("request",),
    example={"id": "visits", "name": "before-2.1"},
)
LIST_SAVEPOINTS = Operation(
    name="job.savepoints",
    args=ListSavepoints,
    result=Savepoints,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/savepoints", id="list_savepoints", tag=_TAG),
    verbs=(
        Verb(
            name="job savepoints",
            about="list savepoints, of one job or of all",
            example="visits",
            fields=(),
            run=f"{_RUN}:job_savepoints",
            more=((("id",), {"metavar": "ID", "nargs": "?", "help": "only savepoints of this job"}),),
        ),
    ),
    python="savepoints",
    example={"id": "visits"},
)
DELETE_SAVEPOINT = Operation(
    name="job.savepoint_delete",
    args=DeleteSavepoint,
    result=Done,
    access=everywhere("operate"),
    http=Http(
        verb="DELETE", path="/v1/savepoints/{name}", id="delete_savepoint", tag=_TAG, status=204, errors=(404, 409)
    ),
    verbs=(
        Verb(
            name="job savepoint-delete",
            about="delete a savepoint; jobs that have begun from it continue",
            example="before-2.1",
            done="deleted",
        ),
    ),
    python="delete_savepoint",
    example={"name": "before-2.1"},
)
ALL_SAVEPOINTS = Operation(
    name="jobs.savepoints", args=AllSavepoints, result=Savepoints, access=DRIVERS, reads=True, python="all_savepoints"
)
KEEP_SAVEPOINT = Operation(
    name="jobs.keep_savepoint",
    args=KeepSavepoint,
    result=Done,
    access=DRIVERS,
    python="keep_savepoint",
    example={**_SOME, "batch": 40, "offsets": b"...", "place": "/data/savepoints/x", "size_bytes": 4_096},
)
DROP_SAVEPOINT = Operation(
    name="jobs.drop_savepoint",
    args=DropSavepoint,
    result=Done,
    access=DRIVERS,
    python="drop_savepoint",
    example={**_SOME, "why": "the disk is full"},
)
SAVEPOINTS = (MAKE_SAVEPOINT, LIST_SAVEPOINTS, DELETE_SAVEPOINT, ALL_SAVEPOINTS, KEEP_SAVEPOINT, DROP_SAVEPOINT)
