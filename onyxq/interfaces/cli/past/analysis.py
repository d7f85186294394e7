"""``onyxq history``: checks and summaries of task archives, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest
from onyxq.history.words import duration
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.output import cell
from onyxq.system.durations import milliseconds

if TYPE_CHECKING:
    from onyxq.spark.analysis.stats import Figures, Times

EXIT_BROKEN = 1


def history_check(context: Context) -> int:
    """Check archives and print broken promises; return 1 if there are any."""
    from onyxq.spark.analysis.history_check import check
    from onyxq.spark.analysis.session import spark_session

    args = context.args
    apart_ms = milliseconds(args.apart, field="apart")
    if args.first < 1:
        raise BadRequest(f"first must be at least 1, not {args.first}", field="first")
    context.out.progress("starting Spark")
    with spark_session(args.master, memory=args.memory) as session:
        context.out.progress("checking")
        report = check(
            session, args.archive, apart_ms=apart_ms, first=args.first, records=args.records or (), live=args.live or ()
        )
    if context.out.as_json:
        context.out.document(report.document())
        return 0 if report.clean else EXIT_BROKEN
    context.out.table(
        None, [{"rule": rule, "broken": count} for rule, count in report.counts.items()], ("rule", "broken")
    )
    for one in report.first:
        token = "-" if one.token is None else one.token
        context.out.line(None, f"{one.rule}: task {one.id} of {cell(one.queue)}, token {token}: {cell(one.what)}")
    repeats = f", {report.repeats:,} repeated rows" if report.repeats else ""
    granted = "" if report.grants is None else f", {report.grants:,} grants of the log"
    context.out.text(
        f"\n{report.tasks:,} tasks, {report.claims:,} claims, {report.updates:,} updates{granted}{repeats}"
    )
    context.out.text("history holds" if report.clean else "history is broken")
    return 0 if report.clean else EXIT_BROKEN


def history_stats(context: Context) -> None:
    """Print, and plot, summaries of the queues in archives."""
    from onyxq.spark.analysis.plots import draw
    from onyxq.spark.analysis.session import spark_session
    from onyxq.spark.analysis.stats import stats

    args = context.args
    context.out.progress("starting Spark")
    with spark_session(args.master, memory=args.memory) as session:
        context.out.progress("summarizing")
        found = stats(session, args.archive, queue=args.queue)
    drawn = draw(found, Path(args.plots)) if args.plots else []
    if context.out.as_json:
        context.out.document({**found.document(), "plots": [str(path) for path in drawn]})
        return
    rows = [*map(_row, found.hours), *({**_row(one), "hour": "all"} for one in found.queues)]
    columns = ("queue", "hour", "claims", "retries", "failed", "expired")
    times = ("wait_half", "wait_95%", "wait_longest", "run_half", "run_95%", "run_longest")
    context.out.table(None, rows, (*columns, *times), empty="the archives have no claims")
    for path in drawn:
        context.out.text(str(path))


def _row(one: Figures) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "hour": one.hour,
        "claims": one.claims,
        "retries": one.retries,
        "failed": one.outcomes.get("failed", 0),
        "expired": one.outcomes.get("expired", 0),
        **_shown("wait", one.wait),
        **_shown("run", one.run),
    }


def _shown(name: str, times: Times) -> dict[str, str | None]:
    values = {"half": times.half_ms, "95%": times.p95_ms, "longest": times.longest_ms}
    return {f"{name}_{part}": None if value is None else duration(value) for part, value in values.items()}
