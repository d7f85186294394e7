"""Pictures of a history's figures, as PNG files; no display is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onyxq.core.errors import BadRequest, Incomplete
from onyxq.history.words import duration
from onyxq.spark.analysis.stats import OUTCOMES, Figures, Stats, Times

QUEUES_MAX = 6
"""Maximum number of queues that are drawn: those with the most claims."""
_COLOURS = {
    "completed": "#3b7dd8",
    "failed": "#d1495b",
    "expired": "#edae49",
    "released": "#8d96a3",
    "cancelled": "#5c5470",
    "unknown": "#d9dce1",
}
_HOUR = timedelta(hours=1)
_WIDTH_IN, _HEIGHT_IN = 10.0, 2.3
BARS_MAX = 150
"""Number of hours up to which each hour has its own bar."""
TICKS_MAX = 6
_SAID_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1_800, 3_600, 10_800, 36_000, 86_400)


def draw(found: Stats, directory: Path) -> list[Path]:
    """Draw waits, run times and the outcomes of claims, each by hour, with a row for each queue.

    Returns the files, none if there are no claims. Raises `Incomplete` without matplotlib.
    """
    if not found.queues:
        return []
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"{directory} cannot be made: {error.strerror}", field="plots") from None
    queues = sorted(sorted(found.queues, key=lambda one: -one.claims)[:QUEUES_MAX], key=lambda one: one.queue)
    names = [one.queue for one in queues]
    hours = {name: [one for one in found.hours if one.queue == name] for name in names}
    span = sorted({_moment(one) for some in hours.values() for one in some})
    left = len(found.queues) - len(names)
    rest = f"; {left} smaller queues left out" if left else ""
    return [
        _picture(directory / "waits.png", "Waiting for a worker", rest, hours, span, _times(lambda one: one.wait)),
        _picture(directory / "runs.png", "Run time", rest, hours, span, _times(lambda one: one.run)),
        _picture(directory / "claims.png", "Claims granted, by outcome", rest, hours, span, _outcomes),
        _picture(directory / "retries.png", "Claims that were retries", rest, hours, span, _retries),
    ]


Panel = Callable[[Any, Sequence[Figures], Sequence[datetime]], None]


def _picture(
    path: Path, title: str, rest: str, hours: dict[str, list[Figures]], span: Sequence[datetime], panel: Panel
) -> Path:
    """Draw one file: a panel for each queue over the same time."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, HourLocator
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Incomplete(f"plots need matplotlib: {error}", hint="pip install 'onyxq[spark]'") from None
    figure = Figure(figsize=(_WIDTH_IN, 0.8 + _HEIGHT_IN * len(hours)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    panels = figure.subplots(len(hours), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (queue, some) in zip(panels, hours.items(), strict=True):
        panel(axes, some, _every_hour(span))
        axes.set_title(queue, loc="left", fontsize=10)
        axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    last = panels[-1]
    last.set_xlim(span[0] - _HOUR / 4, span[-1] + _HOUR * 1.25)
    few = span[-1] - span[0] < 12 * _HOUR
    locator: Any = HourLocator() if few else AutoDateLocator(minticks=3)  # type: ignore[no-untyped-call]
    last.xaxis.set_major_locator(locator)
    last.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    last.set_xlabel(f"hour of the grant, UTC{rest}", fontsize=9)
    known = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(known) > 1:
        figure.legend(known.values(), known, loc="upper right", ncols=len(known), frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)
    return path


def _times(part: Callable[[Figures], Times]) -> Panel:
    """Return a panel with one line each for the median, the 95th percentile and the longest time.

    Lines have gaps in hours without grants.
    """

    def panel(axes: Any, some: Sequence[Figures], every: Sequence[datetime]) -> None:
        from matplotlib.ticker import FixedLocator, NullLocator

        middles = [at + _HOUR / 2 for at in every]
        mark = {"marker": "o", "markersize": 3} if len(every) <= BARS_MAX else {}
        known = {_moment(one): part(one) for one in some}
        for name, label, colour, style in (
            ("half_ms", "half within", "#3b7dd8", "-"),
            ("p95_ms", "95 % within", "#edae49", "-"),
            ("longest_ms", "longest", "#d1495b", ":"),
        ):
            values = [_seconds(getattr(known[at], name)) if at in known else float("nan") for at in every]
            axes.plot(middles, values, style, color=colour, label=label, linewidth=1.6, **mark)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(_ticks(*axes.get_ylim())))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: duration(round(value * 1_000)))

    return panel


def _outcomes(axes: Any, some: Sequence[Figures], every: Sequence[datetime]) -> None:
    """Draw bars of claims, divided by outcome."""
    known = {_moment(one): one for one in some}
    bottom = [0] * len(every)
    for name in (*OUTCOMES, "unknown"):
        values = [_count(known.get(at), name) for at in every]
        if any(values) or name in OUTCOMES[:4]:
            _stack(axes, every, values, bottom, _COLOURS[name], name)
        bottom = [low + more for low, more in zip(bottom, values, strict=True)]
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _stack(
    axes: Any, every: Sequence[datetime], values: Sequence[float], bottom: Sequence[float], colour: str, label: str
) -> None:
    """Draw bars of hours; for many hours a filled outline, because very thin bars would flicker."""
    if len(every) <= BARS_MAX:
        axes.bar(every, values, bottom=bottom, width=_HOUR * 0.9, align="edge", color=colour, label=label)
        return
    edges = [*every, every[-1] + _HOUR]
    tops = [low + more for low, more in zip(bottom, values, strict=True)]
    axes.fill_between(
        edges, [*bottom, bottom[-1]], [*tops, tops[-1]], step="post", linewidth=0, color=colour, label=label
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return a few common time values between two limits, in seconds."""
    found = [value for value in _SAID_S if low <= value <= high]
    return found[:: -(-len(found) // TICKS_MAX)] if found else [low, high]


def _retries(axes: Any, some: Sequence[Figures], every: Sequence[datetime]) -> None:
    """Draw the share of claims that were not the first of their task."""
    known = {_moment(one): 100 * one.retries / one.claims for one in some}
    _stack(axes, every, [known.get(at, 0.0) for at in every], [0] * len(every), "#d1495b", "")
    axes.set_ylim(0, max(5.0, 1.1 * max(known.values(), default=0.0)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")


def _count(one: Figures | None, outcome: str) -> int:
    if one is None:
        return 0
    return one.claims - sum(one.outcomes.values()) if outcome == "unknown" else one.outcomes.get(outcome, 0)


def _every_hour(span: Sequence[datetime]) -> list[datetime]:
    """Return all hours from the first to the last."""
    return [span[0] + _HOUR * place for place in range((span[-1] - span[0]) // _HOUR + 1)]


def _moment(one: Figures) -> datetime:
    assert one.hour is not None
    return datetime.strptime(one.hour, "%Y-%m-%dT%H:00Z").replace(tzinfo=UTC)


def _seconds(value_ms: int | None) -> float:
    """Return seconds, at least 0.001: the scale is logarithmic."""
    return float("nan") if value_ms is None else max(value_ms, 1) / 1_000
