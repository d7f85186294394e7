"""Operations on jobs, which are data pipelines on Spark."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from onyxq.core.limits import BLOB, INPUT_SINCE_MS_MAX, JOB_KEEP_MS_MAX, MOMENT, PLAIN, Name, TaskIdBytes
from onyxq.operations.table.access import everywhere
from onyxq.operations.table.operation import Args, Http, Operation, Place, Result, Verb

ID_CHARS_MAX = 120
KEEP_MS = 7 * 86_400_000
WAIT_MS_MAX = 600_000
HOST_WAIT_MS_MAX = 5_000
EVENTS_MAX = 1_000
"""Most events in one call of a Spark host."""
LETTERS_MAX = 100_000
"""Dead letters that one request counts or sends again."""
JobState: TypeAlias = Literal["waiting", "running", "completed", "killed", "failed"]
JobId: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=ID_CHARS_MAX, pattern=PLAIN, description="Id of the job.")
]
KeepMs: TypeAlias = Annotated[
    int, Meta(ge=0, le=JOB_KEEP_MS_MAX, description="How long the outcome is kept after the job has ended.")
]

LetterTask: TypeAlias = Annotated[Name | None, Meta(description="Only of this task.")]
LetterError: TypeAlias = Annotated[
    Annotated[str, Meta(min_length=1, max_length=1_000)] | None,
    Meta(description="Only with this text in the error, as `type: message`."),
]
Replace: TypeAlias = Annotated[
    bool, Meta(description="Whether the job in its `resume`, which must not have ended, is ended by the same step.")
]


class JobView(Result):
    """A job. Of one that ended long ago only the outcome is known."""

    id: str
    state: JobState
    why: Annotated[str, Meta(description="What a waiting job waits for, or which job replaced this one.")]
    error: Annotated[str, Meta(description="What it failed with: the task, the segment, the traceback.")]
    batch: Annotated[int | None, Meta(description="The last batch that was committed.")]
    digest: Annotated[bytes, Meta(description="Digest of what was submitted, in hex.")]
    submitted_ms: Annotated[int, Meta(extra=MOMENT)]
    ended_ms: Annotated[int | None, Meta(extra=MOMENT)]
    driver: Annotated[str | UnsetType | None, Meta(description="The peer that drives it.")] = UNSET
    ready: Annotated[bool | UnsetType, Meta(description="Whether its query runs there.")] = UNSET
    slots: int | UnsetType = UNSET
    task_slots: dict[str, int] | UnsetType = UNSET
    scheduler: str | UnsetType = UNSET
    percentage: int | UnsetType = UNSET
    min_slots: int | UnsetType = UNSET
    max_slots: int | UnsetType | None = UNSET
    tags: list[str] | UnsetType = UNSET
    zones: list[str] | UnsetType = UNSET
    beside: str | UnsetType | None = UNSET
    own_host: bool | UnsetType = UNSET
    inputs: Annotated[list[str] | UnsetType, Meta(description="Inputs that can be sealed.")] = UNSET
    sealed: list[str] | UnsetType = UNSET
    version: Annotated[int | UnsetType | None, Meta(description="The fencing token of its driver.")] = UNSET
    job: Annotated[
        dict[str, Any] | UnsetType | None,
        Meta(description="What was submitted; null once only the outcome is kept."),
    ] = UNSET
    progress: Annotated[
        dict[str, Any] | UnsetType | None,
        Meta(description="What its driver reports, or has recorded last; null before its first batch."),
    ] = UNSET


class Jobs(Result):
    """Jobs, those under way first."""

    position: Annotated[int, Meta(description="Position of the replica in the log.")]
    jobs: list[JobView]


class SubmittedJob(Result):
    """A job that was submitted."""

    id: str
    digest: bytes
    position: int
    repeat: Annotated[bool, Meta(description="Whether it was submitted before.")]


class SubmitJob(Args):
    """Submit a job.

    The same job under the same id again is the first one. Another job under the id is refused. A job with ``resume``
    takes over the windows, the joins and the places of an ended job, and is refused if it does not fit them. With
    ``replace`` it ends that job and takes its place, or changes nothing.
    """

    body: Annotated[bytes, Meta(description="The job, as `onyxq.jobs.encoding` makes it.")]
    keep_ms: KeepMs = KEEP_MS
    replace: Replace = False


class ReplayJob(Args):
    """Start a job that reads the inputs of another one again.

    It has the definition of the job ``id``, and its windows and joins begin empty. Exactly one of
    ``from_start``, ``from_batch`` and ``from_ms`` tells where its inputs begin. Each output gets another place in
    ``outputs``, unless ``same_outputs``.
    """

    id: JobId
    new_id: Annotated[
        JobId | None, Meta(description="Id of the new job; default: one that a repeat of the request has again.")
    ] = None
    from_start: Annotated[bool, Meta(description="Inputs begin with all that they still have.")] = False
    from_batch: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Inputs begin where they were before this batch of the job, if the log still has that."),
    ] = None
    from_ms: Annotated[
        Annotated[int, Meta(ge=0, le=INPUT_SINCE_MS_MAX)] | None,
        Meta(
            description="Inputs begin at this time: with the files that were modified, and the messages of Kafka that "
            "were sent, then or later.",
            extra=MOMENT,
        ),
    ] = None
    outputs: Annotated[
        dict[str, str],
        Meta(description="Output -> its other queue, path (files and Delta), table (PostgreSQL) or topic (Kafka)."),
    ] = msgspec.field(default_factory=dict)
    same_outputs: Annotated[
        bool, Meta(description="Outputs that are not in `outputs` keep their places, and get their rows again.")
    ] = False
    keep_ms: KeepMs = KEEP_MS


class LetterView(Result):
    """A dead letter of a job: a segment at which a task failed, or that came too late for a window."""

    id: TaskIdBytes
    job: str
    batch: Annotated[int, Meta(description="The batch that read the segment.")]
    task: str
    error: Annotated[str, Meta(description="Type of the exception; `Late` for a late segment.")]
    message: str
    traceback: str
    attempt: Annotated[int, Meta(description="How often the segment has become a dead letter.")]
    at_ms: Annotated[int, Meta(description="When it became one.", extra=MOMENT)]
    window: Annotated[str | None, Meta(description="The window for which it came too late.")]
    time_ms: Annotated[int | None, Meta(description="Time of the late segment.", extra=MOMENT)]
    watermark_ms: Annotated[int | None, Meta(description="Watermark of the window at that time.", extra=MOMENT)]
    segment: Annotated[str, Meta(description="The segment as JSON, or as Python shows it if JSON cannot hold it.")]
    packed: Annotated[bytes, Meta(description="The segment as MessagePack, with all its types.", extra=BLOB)]


class LetterCount(Result):
    """The number of dead letters of a task with one type of error."""

    task: str
    error: str
    count: int


class Letters(Result):
    """A page of dead letters in id order, or with ``count`` their numbers."""

    letters: list[LetterView]
    counts: list[LetterCount]
    after: Annotated[
        TaskIdBytes | None,
        Meta(description="Id after which the next page begins; null: no more pages. A short page may have a next one."),
    ]


class RequeuedLetters(Result):
    """The job that sends letters again."""

    id: Annotated[str | None, Meta(description="Its id; null: no letter waits for it.")]
    count: Annotated[int, Meta(description="Number of letters that this request took.")]
    more: Annotated[bool, Meta(description="Whether it stopped at its limit.")]


class ListLetters(Args):
    """Return dead letters of a job.

    With ``letter`` it is this one alone. With ``count`` they are counted by task and error, up to 100,000 at a time.
    """

    id: JobId
    task: LetterTask = None
    error: LetterError = None
    letter: Annotated[TaskIdBytes | None, Meta(description="Only this one.")] = None
    count: Annotated[bool, Meta(description="Count them by task and type of error.")] = False
    after: Annotated[TaskIdBytes | None, Meta(description="Continue after this id.")] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Most letters of a page.")] = 100
    newest_first: Annotated[bool, Meta(description="In the reverse order: the newest first.")] = False


class RequeueLetters(Args):
    """Send dead letters of a job again.

    A new job with the definition of the job ``id`` reads them, and each segment goes to the task at which it failed.
    Its windows and joins begin empty. A letter is taken once, so a repeated request does not send it again.
    """

    id: JobId
    task: LetterTask = None
    error: LetterError = None
    new_id: Annotated[
        JobId | None, Meta(description="Id of the new job; default: one that follows from its letters.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LETTERS_MAX, description="Most letters to send.")] = LETTERS_MAX
    keep_ms: KeepMs = KEEP_MS


class ListJobs(Args):
    """Return the jobs that are known, those under way first."""

    state: Annotated[JobState | None, Meta(description="Only jobs of this state.")] = None
    progress: Annotated[bool, Meta(description="With what the drivers report of running jobs.")] = False


class GetJob(Args):
    """Return one job and its progress."""

    id: JobId


class WaitJob(Args):
    """Wait for the end of a job.

    The answer comes once the job has ended, or after ``wait_ms`` with the job as it is then.
    """

    id: JobId
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="Longest wait.")] = 30_000


class SealInput(Args):
    """Seal an input of a job: it gets no more data."""

    id: JobId
    input: Annotated[Name, Meta(description="Name of the input.")]


class KillJob(Args):
    """Kill a job.

    What it has not committed by then never counts. Killing it again changes nothing.
    """

    id: JobId


class HostJob(Args):
    """Serve a job as its Spark host, from a process that no peer has started.

    The process calls this again and again. The answer says whether it serves the job, and what it has to do. A process
    that is not heard for ``lease_s`` of the plan has lost the job.
    """

    id: JobId
    host: Annotated[Name, Meta(description="Random id of the process; another one each time it offers to serve.")]
    number: Annotated[
        int, Meta(ge=0, description="0 until it serves, then counted from 1; a repeat of a call has its number.")
    ] = 0
    node: Annotated[
        str, Meta(max_length=ID_CHARS_MAX, description="Node that it serves, from the plan; empty before.")
    ] = ""
    events: Annotated[
        list[dict[str, Any]], Meta(max_length=EVENTS_MAX, description="What happened since the call before.")
    ] = msgspec.field(default_factory=list)
    wait_ms: Annotated[int, Meta(ge=0, le=HOST_WAIT_MS_MAX, description="Longest wait for something to do.")] = 500


class HostOrders(Result):
    """What a Spark host has to do."""

    state: Annotated[
        Literal["waiting", "serving", "ended"],
        Meta(description="Whether it waits until the job needs a host, serves the job, or has lost it."),
    ]
    plan: Annotated[
        dict[str, Any] | None,
        Meta(description="With the first answer that says `serving`: node, slots, lease_s, checkpoints."),
    ] = None
    orders: list[dict[str, Any]] = msgspec.field(default_factory=list)
    why: Annotated[str, Meta(description="Why it has lost the job.")] = ""


_PATH, _TAG, _RUN = "/v1/jobs/{id}", "jobs", "onyxq.interfaces.cli.jobs"

SUBMIT_JOB = Operation(
    name="job.submit",
    args=SubmitJob,
    result=SubmittedJob,
    access=everywhere("admin"),
    bounded=True,
    large=True,
    example={"body": b"..."},
)
REPLAY_JOB = Operation(
    name="job.replay",
    args=ReplayJob,
    result=SubmittedJob,
    access=everywhere("admin"),
    bounded=True,
    http=Http(verb="POST", path=f"{_PATH}/replay", id="replay_job", tag=_TAG, status=201, errors=(404, 409)),
    python="replay_job",
    example={"id": "words", "from_ms": 1_800_000_000_000, "outputs": {"out": "/data/words-again"}},
)
LIST_JOBS = Operation(
    name="job.list",
    args=ListJobs,
    result=Jobs,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path="/v1/jobs", id="list_jobs", tag=_TAG, fixed={"progress": False}),
    verbs=(
        Verb(
            name="job list",
            about="list jobs, those under way first",
            example="--state running",
            fields=("state",),
            run=f"{_RUN}:job_list",
        ),
    ),
    python="jobs",
    python_left_out=("progress",),
    example={"state": "running"},
)
GET_JOB = Operation(
    name="job.get",
    args=GetJob,
    result=JobView,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path=_PATH, id="get_job", tag=_TAG, errors=(404,)),
    verbs=(
        Verb(
            name="job show",
            about="show the state, slots and progress of a job",
            example="words --json",
            run=f"{_RUN}:job_show",
        ),
    ),
    python="job",
    example={"id": "words"},
)
WAIT_JOB = Operation(
    name="job.wait",
    args=WaitJob,
    result=JobView,
    access=everywhere("read"),
    reads=True,
    http=Http(verb="GET", path=f"{_PATH}/outcome", id="wait_for_job", tag=_TAG, errors=(404,), waits=True),
    example={"id": "words", "wait_ms": 60_000},
)
SEAL_INPUT = Operation(
    name="job.seal",
    args=SealInput,
    result=JobView,
    access=everywhere("operate"),
    http=Http(verb="POST", path=f"{_PATH}/seal", id="seal_input", tag=_TAG, errors=(404, 409)),
    verbs=(
        Verb(
            name="job seal",
            about="seal an input: it gets no more data",
            example="words in",
            run=f"{_RUN}:job_seal",
        ),
    ),
    python="seal_job",
    example={"id": "words", "input": "in"},
)
KILL_JOB = Operation(
    name="job.kill",
    args=KillJob,
    result=JobView,
    access=everywhere("operate"),
    http=Http(verb="DELETE", path=_PATH, id="kill_job", tag=_TAG, errors=(404, 409)),
    verbs=(
        Verb(
            name="job kill",
            about="end a job; its uncommitted work never counts",
            example="words",
            run=f"{_RUN}:job_kill",
        ),
    ),
    python="kill_job",
    example={"id": "words"},
)
HOST_JOB = Operation(
    name="job.host",
    args=HostJob,
    result=HostOrders,
    access=everywhere("admin"),
    large=True,
    python="host_job",
    python_left_out=("wait_ms",),
    example={"id": "words", "host": "9f86d081884c7d65"},
)
LIST_LETTERS = Operation(
    name="job.letters",
    args=ListLetters,
    result=Letters,
    access=everywhere("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path=f"{_PATH}/letters", id="list_letters", tag=_TAG, errors=(404,), pages="letters"),
    verbs=(
        Verb(
            name="job letters",
            about="list or count dead letters of a job, or show one",
            example="words --task parse --error KeyError",
            run=f"{_RUN}:job_letters",
        ),
    ),
    python="job_letters",
    example={"id": "words", "task": "parse"},
)
REQUEUE_LETTERS = Operation(
    name="job.requeue",
    args=RequeueLetters,
    result=RequeuedLetters,
    access=everywhere("admin"),
    place=Place.ALL_LEADERS,
    bounded=True,
    http=Http(verb="POST", path=f"{_PATH}/requeue", id="requeue_letters", tag=_TAG, errors=(404, 409)),
    verbs=(
        Verb(
            name="job requeue",
            about="send dead letters of a job again, by a new job with its definition",
            example="words --task parse --error KeyError",
            columns=("id", "count", "more"),
        ),
    ),
    python="requeue_job",
    example={"id": "words", "task": "parse", "error": "KeyError"},
)
JOBS = (
    SUBMIT_JOB,
    REPLAY_JOB,
    LIST_JOBS,
    GET_JOB,
    WAIT_JOB,
    SEAL_INPUT,
    KILL_JOB,
    LIST_LETTERS,
    REQUEUE_LETTERS,
    HOST_JOB,
)
