"""The endpoint that submits a job: over HTTP a job is JSON."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta
from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.values import answer_text
from onyxq.jobs.encoding import encode_map, from_map, pickles_in, to_map
from onyxq.operations.table.job import KEEP_MS, SUBMIT_JOB, KeepMs, Replace, SubmitJob, SubmittedJob
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import Args


class NewJob(Args):
    """A job as `onyxq.jobs` checks it."""

    id: Annotated[
        Any, Meta(description="Letters, digits, `.`, `_` and `-`; default: a random one, and a repeat is another job.")
    ] = UNSET
    workflow: Annotated[Any, Meta(description="Edges `[from, to]` between names of the catalog.")] = UNSET
    catalog: Annotated[
        Any,
        Meta(
            description="Tasks: `type` (`input`, `function`, `reduce`, `join`, `frame`, `sql`, `batch_function`, "
            "`output`), `name` and more."
        ),
    ] = UNSET
    flow_conditions: Annotated[
        Any, Meta(description="Paths of segments: objects with `from`, `to`, `when` and more.")
    ] = UNSET
    windows: Annotated[Any, Meta(description="Windows of `reduce` tasks.")] = UNSET
    triggers: Annotated[Any, Meta(description="When a window's states are emitted.")] = UNSET
    lifecycles: Annotated[Any, Meta(description="Functions that are called around a task's work.")] = UNSET
    scheduler: Annotated[Any, Meta(description="`greedy`, `balanced` or `percentage`.")] = UNSET
    percentage: Annotated[Any, Meta(description="Of all slots, with the scheduler of that name.")] = UNSET
    min_slots: Annotated[Any, Meta(description="Slots without which it waits.")] = UNSET
    max_slots: Annotated[Any, Meta(description="Slots that it can use; null: any number.")] = UNSET
    tags: Annotated[Any, Meta(description="What its peer must have.")] = UNSET
    zones: Annotated[Any, Meta(description="Its peer must be in one of these zones.")] = UNSET
    beside: Annotated[Any, Meta(description="Id of a job whose peer it shares.")] = UNSET
    own_host: Annotated[Any, Meta(description="Whether it has a Spark process of its own.")] = UNSET
    host: Annotated[
        Any, Meta(description="Settings of that process: memory, cores, packages, Python, further settings of Spark.")
    ] = UNSET
    checkpoint: Annotated[Any, Meta(description="Path or URI that every peer reaches.")] = UNSET
    trigger_ms: Annotated[Any, Meta(description="Time between two batches.")] = UNSET
    resume: Annotated[
        Any,
        Meta(
            description="Id of a job whose places in its inputs, windows and joins it takes over; or `savepoint:NAME`."
        ),
    ] = UNSET
    drop_state: Annotated[
        Any, Meta(description="Windows, joins and frame tasks of that job whose state it does not take over.")
    ] = UNSET
    restarts: Annotated[Any, Meta(description="Failures in a row that are answered by a new start.")] = UNSET
    key_groups: Annotated[Any, Meta(description="Parts of the state of windows and joins.")] = UNSET
    dead_letters: Annotated[
        Any, Meta(description="Whether segments at which its tasks fail become dead letters, instead of failing it.")
    ] = UNSET
    metadata: Annotated[Any, Meta(description="Anything.")] = UNSET
    keep_ms: KeepMs = KEEP_MS
    replace: Replace = False


_BESIDE = ("keep_ms", "replace")
"""Fields of the request that are not the job's."""


async def submit_job(call: Call) -> Response:
    """Submit a job."""
    given = {name: getattr(call.args, name) for name in NewJob.__struct_fields__ if name not in _BESIDE}
    job = {name: value for name, value in given.items() if value is not UNSET}
    for place in pickles_in(job):
        raise BadRequest(
            f"{place} is pickled: over HTTP functions come by name",
            field=place,
            hint='Give {"import": "package.module:name"}, or submit from Python.',
        )
    args = SubmitJob(body=encode_map(to_map(from_map(job))), keep_ms=call.args.keep_ms, replace=call.args.replace)
    return answer_text(json_text(await call.do(SUBMIT_JOB, args)), status=201)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/jobs",
        name="submit_job",
        tag="jobs",
        summary="Submit a job",
        doc="Functions are named: `package.module:name`, importable where Spark runs. The same job under the same `id` "
        "again makes no second job, and the answer says `repeat`. Another job under the id is refused with 409.",
        handle=submit_job,
        role="admin",
        args=NewJob,
        large=True,
        status=201,
        result=SubmittedJob,
        errors=(409,),
    ),
)
