"""Commands on the history of the log: dumps, replays, the replica at any position, the history of a task.

``log replay`` and ``--file`` read files.  The other commands ask a peer, and ``--archive`` adds records
that are trimmed from the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyxq.core import snapshot
from onyxq.core.diff import Tree, plain, tree
from onyxq.core.errors import BadRequest, NotFound, OnyxqError, Unavailable
from onyxq.core.log.interface import START
from onyxq.core.replica import Replica
from onyxq.history.archive import Part, best, groups, parts
from onyxq.history.dump import Dump, read, write
from onyxq.history.file_format import HistoryFileWriter
from onyxq.history.following import Trimmed, ask, replica
from onyxq.history.live_log import end_of, live
from onyxq.history.replay import Report, checked, replica_at
from onyxq.interfaces.cli.context import Context, clock, found_id
from onyxq.interfaces.cli.output import cell
from onyxq.interfaces.cli.past.sources import pieces

if TYPE_CHECKING:
    from onyxq.client import Client

DUMP_TRIES = 5
PROGRESS_RECORDS = 2_000


def log_dump(context: Context) -> None:
    """Write the log to a file."""
    args = context.args
    if args.from_beginning and args.archive:
        raise BadRequest(
            "--from-beginning and --archive were both given: an archive is always read from its beginning",
            field="from_beginning",
        )
    with context.client() as client:
        for left in reversed(range(DUMP_TRIES)):
            try:
                context.out.fields(_dump_once(context, client))
                return
            except Trimmed:
                # The log was trimmed meanwhile. It now starts after a newer snapshot.
                if not left or args.from_beginning:
                    raise


def _dump_once(context: Context, client: Client) -> dict[str, Any]:
    args, path = context.args, Path(context.args.file)
    newest = live(client.call, from_beginning=args.from_beginning)
    end = end_of(client.call)
    found = groups([newest, *parts(map(Path, args.archive))])[-1] if args.archive else newest.dump

    def progress(writer: HistoryFileWriter) -> None:
        if writer.records % PROGRESS_RECORDS == 0:
            first = writer.first or 0
            said = f"{writer.records} records, up to {writer.last} of {end}"
            context.out.progress(said, writer.last - first, end - first)

    writer = write(path, found, upto=end, progress=progress)
    return {
        "file": str(path),
        "records": writer.records,
        "first": writer.first,
        "last": writer.last,
        "origin": None if found.origin is None else found.origin.position,
        "bytes": path.stat().st_size,
    }


def log_replay(context: Context) -> int:
    """Replay a file and print the outcome; return 1 if an invariant was broken."""
    args = context.args
    if Path(args.file).is_dir():
        return _replay_archive(context)
    if args.spark:
        raise BadRequest("--spark needs the directory of an archive, not a single dump", field="spark")
    dump = read(args.file)
    started = time.perf_counter()
    report = Report(replica=dump.start)
    for report in checked(dump, args.until, check_every=args.check_every):
        if report.records % PROGRESS_RECORDS == 0 and report.records:
            context.out.progress(f"{report.records} records, at {report.replica.position}")
    seconds = time.perf_counter() - started
    shown = {
        "cluster": dump.cluster,
        "origin": None if dump.origin is None else dump.origin.position,
        "first": report.first,
        "position": report.replica.position,
        "records": report.records,
        "entries": report.entries,
        "invariants_checked": report.checked,
        "violations": report.violations,
        "digest": snapshot.digest(report.replica),
        "seconds": round(seconds, 3),
        "entries_per_s": round(report.entries / seconds) if seconds else 0,
    }
    return _print_replay(context, shown, report.verdicts, report.problems)


def _replay_archive(context: Context) -> int:
    """Replay the files of an archive, each from its own snapshot, and compare the replicas where files meet."""
    from onyxq.spark.analysis import replays

    args = context.args
    if args.until is not None:
        raise BadRequest("--until needs a single file: an archive is replayed as a whole", field="until")
    started = time.perf_counter()
    some = replays.pieces(Path(args.file).absolute())
    if args.spark:
        from onyxq.spark.analysis.session import spark_session

        with spark_session(args.spark) as session:
            results = list(replays.on_spark(session, some, check_every=args.check_every))
    else:
        results = [replays.replayed(one, check_every=args.check_every) for one in some]
    found = replays.summed(some, results)
    shown = {
        "files": found.files,
        "files_without_origin": found.alone,
        "first": some[0].first,
        "position": some[-1].last,
        "records": found.records,
        "entries": found.entries,
        "seams_compared": found.seams,
        "invariants_checked": found.checked,
        "violations": found.violations,
        "seconds": round(time.perf_counter() - started, 3),
    }
    return _print_replay(context, shown, found.verdicts, found.problems)


def _print_replay(
    context: Context, shown: dict[str, Any], verdicts: Mapping[tuple[str, str], int], problems: Mapping[str, int]
) -> int:
    counts = [
        *({"entry": name, "verdict": verdict, "count": n} for (name, verdict), n in sorted(verdicts.items())),
        *({"entry": "(record)", "verdict": problem, "count": n} for problem, n in sorted(problems.items())),
    ]
    if context.out.as_json:
        context.out.document({**shown, "verdicts": counts})
    else:
        context.out.table(None, counts, ("entry", "verdict", "count"), empty="no records")
        context.out.text("")
        context.out.fields(shown)
    return 1 if shown["violations"] else 0


def replica_show(context: Context) -> None:
    """Print the replica, now or at an earlier position."""
    found = _replica_of(context)
    shown: Tree = tree(found)
    for name in context.args.path.split("/") if context.args.path else ():
        if not isinstance(shown, dict) or name not in shown:
            raise NotFound(
                f"the replica has no {name!r} of path {context.args.path}",
                field="path",
                hint="Leave out --path to see the names.",
            )
        shown = shown[name]
    digest = snapshot.digest(found)
    if context.out.as_json:
        context.out.document({"position": found.position, "digest": digest, "replica": shown})
        return
    context.out.line(None, f"position {found.position}, digest {digest}")
    for line in _branches(shown, 0):
        context.out.line(None, line)


def _replica_of(context: Context) -> Replica:
    args = context.args
    if args.file:
        return _in_file(read(args.file), args.at)
    with context.client() as client:
        if args.at is None:
            return ask(replica(), client.call)
        end = end_of(client.call)
        if args.at > end:
            raise NotFound(
                f"position {args.at} does not exist yet: the log ends at {end}", field="at", hint="Give a smaller one."
            )
        return _at(pieces(context, client), args.at)


def _in_file(dump: Dump, position: int | None) -> Replica:
    """Return the replica at a position of a dump, or at its end; raises `NotFound` if it ends before the position."""
    found = replica_at(dump, position)
    if position is not None and found.position < position and all(one.position < position for one in dump.records):
        raise NotFound(
            f"the file ends at position {found.position}, before {position}",
            field="at",
            hint="Give a smaller one, or dump the log again.",
        )
    return found


def _at(known: list[Part], position: int) -> Replica:
    dump = best(known, position)
    if dump is None:
        start = min((one.start for one in known if one.start is not None), default=START)
        raise NotFound(
            f"position {position} is trimmed: the known log begins at {start}", field="at", hint=Trimmed.hint
        )
    return replica_at(dump, position)


def task_explain(context: Context) -> None:
    """Print everything that happened to a task."""
    from onyxq.history import explain, words

    with context.client() as client:
        wanted = found_id(client, context.args.id)
        known, missing = _stored(client, wanted)
        end = end_of(client.call)
        dumps = groups(pieces(context, client))
        events = explain.from_store(wanted, known) if known else []
        for dump in dumps:
            events += explain.from_log(dump, wanted, end)
    found = explain.merged(events)
    if missing is not None and not found:
        raise missing
    if missing is not None:
        context.out.note(f"shown from the log only: {missing.message}")
    since = dumps[0].start.position + 1 if dumps else end + 1
    if context.out.as_json:
        task = plain({**known["task"], "data": None, "result": None}) if known else None
        shown = [plain(one) for one in found]
        said = words.summary(known["task"]) if known else None
        context.out.document({"id": wanted.hex(), "summary": said, "task": task, "log_from": since, "events": shown})
        return
    about = f" of queue {known['task']['queue']}: {known['task']['state']}" if known else ""
    context.out.line(None, f"task {wanted.hex()}{about}")
    if known:
        context.out.line(None, words.summary(known["task"]))
    for line in explain.lines(found):
        one = line.first
        first, last = clock(one.at_ms), clock(line.last.at_ms)
        until = f", the last at {last}" if last != first else ""
        where = f"at {one.position}" if one.position is not None else ""
        by = f" (written by {one.peer})" if one.peer else f" (from {one.source})"
        context.out.line(None, f"{first}  {where:<12}  {cell(line.words)}{until}{by}")
    if since > 0:
        context.out.note(f"records up to {since - 1} are trimmed: earlier events come from the store only")


def _stored(client: Client, wanted: bytes) -> tuple[dict[str, Any] | None, OnyxqError | None]:
    """Return what the store knows about a task, or why it knows nothing.

    Its partition is not served, or the task is purged. The log may name it longer than the store has it.
    """
    try:
        return client.call("task_history", {"id": wanted}), None
    except (NotFound, Unavailable) as error:
        return None, error


def _branches(value: Tree, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if not isinstance(value, dict):
        yield f"{indent}{cell(str(value))}"
        return
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield f"{indent}{cell(name)}"
            yield from _branches(item, depth + 1)
        else:
            shown = ", ".join(map(str, item)) if isinstance(item, list) else item
            yield f"{indent}{cell(name)}: {'-' if shown in ('', None) or shown == {} else cell(str(shown))}"
