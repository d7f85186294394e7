"""Endpoints for jobs: submit, list, look, wait, seal, kill."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.core.errors import BadRequest
from onyxq.core.jobs import lifetime
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import AnyValue, Choice, Field, Integer, Object, Text
from onyxq.interfaces.http.values import answer
from onyxq.jobs.encoding import encode_map, from_map, pickles_in, to_map
from onyxq.node.arguments import WAIT_MS_MAX

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
        "keep_ms": Field(Integer(), doc="How long the outcome is kept once the job has ended; default a week."),
    },
)
SEAL = Object("Seal", {"input": Field(Text(), required=True, doc="Name of the input.")})
STATES = (lifetime.WAITING, lifetime.RUNNING, *lifetime.ENDED)
LIST = Object("ListJobs", {"state": Field(Choice(STATES), doc="Only jobs of this state.")})
WAIT = Object("WaitForJob", {"wait_ms": Field(Integer(0, WAIT_MS_MAX), default=30_000, doc="Answer by then as it is.")})


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
    more = {"keep_ms": call.body["keep_ms"]} if "keep_ms" in call.body else {}
    found = await call.ask("job.submit", body=encode_map(to_map(job)), **more)
    return answer(found, status=201)


async def list_jobs(call: Call) -> Response:
    """All that are known."""
    return answer(await call.ask("job.list", state=call.query.get("state")))


async def get_job(call: Call) -> Response:
    """One of them."""
    return answer(await call.ask("job.get", id=call.path["job"]))


async def wait_for_job(call: Call) -> Response:
    """One of them, once it has ended."""
    return answer(await call.ask("job.wait", id=call.path["job"], wait_ms=call.query["wait_ms"]))


async def seal_input(call: Call) -> Response:
    """Say that nothing more comes on an input."""
    return answer(await call.ask("job.seal", id=call.path["job"], input=call.body["input"]))


async def kill_job(call: Call) -> Response:
    """End a job."""
    return answer(await call.ask("job.kill", id=call.path["job"]))


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
    Endpoint(
        method="GET",
        path="/v1/jobs",
        name="list_jobs",
        tag="jobs",
        summary="The jobs that are known",
        handle=list_jobs,
        query=LIST,
        answer=ref("Jobs"),
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{job}",
        name="get_job",
        tag="jobs",
        summary="One job and its progress",
        handle=get_job,
        answer=ref("Job"),
        errors=(404,),
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{job}/outcome",
        name="wait_for_job",
        tag="jobs",
        summary="Wait for the end of a job",
        doc="Answers once the job has ended, or after `wait_ms` with the job as it is then.",
        handle=wait_for_job,
        query=WAIT,
        answer=ref("Job"),
        errors=(404,),
        waits=True,
    ),
    Endpoint(
        method="POST",
        path="/v1/jobs/{job}/seal",
        name="seal_input",
        tag="jobs",
        summary="Say that nothing more comes on an input",
        handle=seal_input,
        role="operate",
        body=SEAL,
        answer=ref("Job"),
        errors=(404, 409),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/jobs/{job}",
        name="kill_job",
        tag="jobs",
        summary="Kill a job",
        doc="What it has not committed by then never counts. Killing it again changes nothing.",
        handle=kill_job,
        role="operate",
        answer=ref("Job"),
        errors=(404, 409),
    ),
)
