"""The endpoint that submits a job: over HTTP a job is JSON."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.core.limits import JOB_KEEP_MS_MAX
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import AnyValue, Field, Integer, Object
from onyxq.interfaces.http.values import answer_text
from onyxq.jobs.encoding import encode_map, from_map, pickles_in, to_map
from onyxq.operations.table.job import KEEP_MS, SUBMIT_JOB, SubmitJob
from onyxq.operations.table.json_form import json_text

_DOCS = {
    "id": "Letters, digits, `.`, `_` and `-`; a random one without, and then a repeated request is another job.",
    "workflow": "Edges `[from, to]` between names of the catalog.",
    "catalog": "The tasks: objects with `type` (`input`, `function`, `reduce`, `join`, `output`), `name` and more.",
    "flow_conditions": "Which segments go where: objects with `from`, `to`, `when` and more.",
    "windows": "Windows of `reduce` tasks.",
    "triggers": "When a window's states are emitted.",
    "lifecycles": "Functions that are called around a task's work.",
    "scheduler": "`greedy`, `balanced` or `percentage`.",
    "percentage": "Of all slots, with the scheduler of that name.",
    "min_slots": "Slots without which it waits.",
    "max_slots": "Slots that it can use; null: any number.",
    "tags": "What its peer must have.",
    "zones": "In one of which its peer must be.",
    "beside": "Id of a job whose peer it shares.",
    "own_host": "Whether it has a Spark process of its own.",
    "checkpoint": "Path or URI that every peer reaches.",
    "trigger_ms": "Time between two batches.",
    "resume": "Id of a job from whose committed offsets it starts.",
    "restarts": "Failures in a row that are answered by a new start.",
    "key_groups": "Parts of the state of windows and joins.",
    "metadata": "Anything.",
}
JOB = Object(
    "NewJob",
    {
        **{name: Field(AnyValue(), doc=text) for name, text in _DOCS.items()},
        "keep_ms": Field(
            Integer(0, JOB_KEEP_MS_MAX), doc="How long the outcome is kept once the job has ended; default a week."
        ),
    },
)


async def submit_job(call: Call) -> Response:
    """Submit a job."""
    said = {name: value for name, value in call.body.items() if name != "keep_ms"}
    for place in pickles_in(said):
        raise BadRequest(
            f"{place} is pickled: over HTTP functions come by name",
            field=place,
            hint='Give {"import": "package.module:name"}, or submit from Python.',
        )
    job = from_map(said)
    args = SubmitJob(body=encode_map(to_map(job)), keep_ms=call.body.get("keep_ms", KEEP_MS))
    return answer_text(json_text(await call.do(SUBMIT_JOB, args)), status=201)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/jobs",
        name="submit_job",
        tag="jobs",
        summary="Submit a job",
        doc="Functions are named: `package.module:name`, importable where Spark runs. The same job under the same `id` "
        "again is no second job, and the answer says `repeat`; another job under the id is refused with 409.",
        handle=submit_job,
        role="admin",
        body=JOB,
        large=True,
        status=201,
        answer=ref("SubmittedJob"),
        errors=(409,),
    ),
)
