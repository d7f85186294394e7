"""``onyxq job``: pipelines that run on Spark."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest
from onyxq.history.words import moment
from onyxq.interfaces.cli.context import Context, clock, task_id
from onyxq.interfaces.cli.context import moment as moment_of
from onyxq.operations.table.job import KEEP_MS, LIST_LETTERS, Letters
from onyxq.operations.table.json_form import json_text
from onyxq.operations.table.operation import converted
from onyxq.system.durations import milliseconds

if TYPE_CHECKING:
    from onyxq.client import Client, JobOutcome
    from onyxq.jobs.model import Job

COLUMNS = ("id", "state", "driver", "slots", "ready", "batch", "submitted", "ended", "why")
FIELDS = (
    "id state why error driver ready slots task_slots scheduler percentage min_slots max_slots tags zones beside "
    "own_host inputs sealed batch version digest submitted ended"
).split()
LETTER_COLUMNS = ("id", "task", "error", "message", "attempt", "at", "segment")
EXIT_FAILED = 1
SAVEPOINT_COLUMNS = ("name", "job", "state", "batch", "at", "size_bytes", "place")
SAVEPOINT_TIMEOUT = "10m"
START = "start"
"""The place of a replay that begins with all that inputs still have."""
MODULE_PREFIX = "_job_of_"


def job_submit(context: Context) -> int | None:
    """Submit a job that is in a file or module."""
    from attrs import evolve

    from onyxq.jobs.model import SAVEPOINT

    args = context.args
    keep_ms = milliseconds(args.keep, field="keep") if args.keep else None
    job = load_job(args.target)
    if args.resume and args.from_savepoint:
        raise BadRequest("a job has either --resume or --from-savepoint", field="from_savepoint")
    resume = SAVEPOINT + args.from_savepoint if args.from_savepoint else args.resume
    given = {"id": args.id, "resume": resume, "drop_state": args.drop_state and tuple(args.drop_state)}
    job = evolve(job, **{name: value for name, value in given.items() if value is not None})
    with context.client() as client:
        name = client.submit_job(job, keep_ms=keep_ms, importable=not args.no_import, replace=args.replace)
        return _submitted(context, client, name)


def job_replay(context: Context) -> int | None:
    """Start a job that reads the inputs of another one again."""
    args = context.args
    outputs: dict[str, str] = {}
    for one in args.output or ():
        name, _, place = one.partition("=")
        if not name or not place or name in outputs:
            raise BadRequest(f"{one!r} is not NAME=PLACE, once for each output", field="output")
        outputs[name] = place
    with context.client() as client:
        name = client.replay_job(
            args.id,
            new_id=args.new_id,
            outputs=outputs,
            same_outputs=args.same_outputs,
            keep_ms=milliseconds(args.keep, field="keep") if args.keep else KEEP_MS,
            **_place(args.begin),
        )
        return _submitted(context, client, name)


def _place(text: str) -> dict[str, Any]:
    """Return the place where inputs begin, as the client takes it."""
    if text == START:
        return {"from_start": True}
    if text.isascii() and text.isdigit():
        return {"from_batch": int(text)}
    return {"from_ms": moment_of(text, field="from")}


def _submitted(context: Context, client: Client, name: str) -> int | None:
    """Print the id of a job, or wait for its end and print its outcome."""
    if not context.args.wait:
        context.out.result({"id": name}, name)
        return None
    context.out.note(f"submitted {name}")
    return _ended(context, client.wait_job(name, *_wait_ms(context)))


def job_list(context: Context) -> None:
    """Print all jobs, unfinished jobs first."""
    found = [presented(one) for one in context.call("job.list", {"state": context.args.state})["jobs"]]
    rows = [{**_row(one), "why": _brief(one["why"] or one["error"])} for one in found]
    context.out.table({"jobs": found}, rows, COLUMNS, empty="no jobs")


def job_show(context: Context) -> None:
    """Print one job, with the report of its driver."""
    _print(context, context.call("job.get", {"id": context.args.id}))


def job_wait(context: Context) -> int | None:
    """Wait for the end of a job and print its outcome."""
    with context.client() as client:
        return _ended(context, client.wait_job(context.args.id, *_wait_ms(context)))


def job_seal(context: Context) -> None:
    """Declare that an input gets no more data."""
    _print(context, context.call("job.seal", {"id": context.args.id, "input": context.args.input}))


def job_kill(context: Context) -> None:
    """Kill a job."""
    _print(context, context.call("job.kill", {"id": context.args.id}))


def job_savepoint(context: Context) -> None:
    """Save the state of a running job, and print the savepoint."""
    args = context.args
    wait_ms = milliseconds(args.timeout or SAVEPOINT_TIMEOUT, field="timeout")
    with context.client() as client:
        found = client.savepoint_job(args.id, args.name, wait_ms)
    if context.out.as_json:
        context.out.document(found)
    else:
        row = {**found, "at": clock(found["at_ms"])}
        context.out.fields({name: row[name] for name in SAVEPOINT_COLUMNS})


def job_savepoints(context: Context) -> None:
    """Print the savepoints of one job or of all."""
    found = context.call("job.savepoints", {"id": context.args.id})["savepoints"]
    rows = [{**one, "at": clock(one["at_ms"])} for one in found]
    context.out.table({"savepoints": found}, rows, SAVEPOINT_COLUMNS, empty="no savepoints")


def job_letters(context: Context) -> None:
    """Print a page of dead letters of a job, their numbers, or one of them."""
    asked = {name: getattr(context.args, name) for name in LIST_LETTERS.members}
    asked = {name: value for name, value in asked.items() if value is not None}
    asked |= {name: task_id(asked[name], field=name) for name in ("letter", "after") if name in asked}
    found = converted(Letters, context.call(LIST_LETTERS.name, asked))
    shown = json.loads(json_text(found))
    if context.out.as_json:
        context.out.document(shown)
    elif "letter" in asked:
        (letter,) = shown["letters"]
        times = {name.removesuffix("_ms"): clock(letter.pop(name)) for name in ("at_ms", "time_ms", "watermark_ms")}
        context.out.fields({name: value for name, value in {**letter, **times}.items() if value not in (None, "")})
    elif asked.get("count"):
        context.out.table(shown, shown["counts"], ("task", "error", "count"), empty="no dead letters")
    else:
        context.out.table(shown, map(_letter_row, shown["letters"]), LETTER_COLUMNS, empty="no dead letters")
    if found.after is not None:
        context.out.note(f"there may be more: --after {found.after.hex()}")


def _letter_row(letter: dict[str, Any]) -> dict[str, Any]:
    brief = {name: _brief(letter[name]) for name in ("message", "segment")}
    return {**letter, **brief, "at": clock(letter["at_ms"])}


def _wait_ms(context: Context) -> tuple[int, ...]:
    timeout = context.args.timeout
    return (milliseconds(timeout, field="timeout"),) if timeout else ()


def _ended(context: Context, outcome: JobOutcome) -> int | None:
    from attrs import asdict

    words = f"{outcome.id} {outcome.state}" + (f": {outcome.error}" if outcome.error else "")
    context.out.result(asdict(outcome), words)
    return None if outcome.completed else EXIT_FAILED


# --- loading a job ---------------------------------------------------------


def load_job(target: str) -> Job:
    """Return the `Job` that ``FILE.py:name`` or ``module:name`` means; raises `BadRequest`.

    Functions of a file are sent with the job. Functions of a module are sent as names, because the
    processes of Spark can import the module.
    """
    from onyxq.jobs.model import Job

    place, colon, name = target.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise BadRequest(f"{target!r} is not FILE.py:NAME or MODULE:NAME", field="target")
    module = _file(place) if place.endswith(".py") else _module(place)
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        found = found()
    if not isinstance(found, Job):
        known = sorted(key for key, value in vars(module).items() if isinstance(value, Job))
        there = f"; it has {', '.join(known)}" if known else ""
        raise BadRequest(f"{place} has no onyxq.Job called {name!r}{there}", field="target")
    return found


def _file(place: str) -> ModuleType:
    path = Path(place)
    try:
        code = compile(path.read_text("utf-8"), str(path), "exec")
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        raise BadRequest(f"{place}: {getattr(error, 'strerror', None) or error}", field="target") from None
    # Functions of this module are pickled, because no other process can import it under this name.
    module = ModuleType(MODULE_PREFIX + path.stem.replace("-", "_"))
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.resolve().parent))
    exec(code, vars(module))
    return module


def _module(place: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise BadRequest(f"there is no module {place!r}", field="target") from None


# --- words --------------------------------------------------------------------------


def presented(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job in types that JSON has."""
    return {**job, "digest": job["digest"].hex()}


def _row(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "submitted": clock(job["submitted_ms"]), "ended": clock(job.get("ended_ms"))}


def _brief(text: str) -> str:
    """Return the first line of a text, short enough for a table."""
    line = text.partition("\n")[0]
    return line if len(line) <= 60 else line[:59] + "…"


def _print(context: Context, found: dict[str, Any]) -> None:
    shown = presented(found)
    if context.out.as_json:
        context.out.document(shown)
        return
    row = _row(shown)
    fields = {name: row[name] for name in FIELDS if row.get(name) not in (None, "", [], {})}
    context.out.fields({**fields, **_progress(shown.get("progress")), **_workflow(shown.get("job"))})


def _progress(report: dict[str, Any] | None) -> dict[str, Any]:
    """Return the report of the driver as fields; ``late``: segments that arrived too late for windows and joins."""
    shown = {
        f"driver_{name}" if name in ("state", "error") else name: value
        for name, value in (report or {}).items()
        if name not in ("batches", "inputs") and value is not None
    }
    for name, one in (report or {}).get("inputs", {}).items():
        lag, files = one["lag"], one.get("lag_files")
        left = (
            f", {files} files still to read" if files is not None else "" if lag is None else f", {lag} still to read"
        )
        shown[f"input {name}"] = f"{one['rows']} rows read{left}"
    for name, ms in (("watermark", shown.pop("watermark_ms", None)), ("reported", shown.pop("at_ms", None))):
        if ms is not None:
            shown[name] = moment(ms)
    return shown


def _workflow(job: dict[str, Any] | None) -> dict[str, Any]:
    return {"workflow": " ".join(f"{start}->{end}" for start, end in job["workflow"])} if job else {}
