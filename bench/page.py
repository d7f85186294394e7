"""Makes the page of figures from the JSON documents of the benchmarks.

    python -m bench.page > docs/performance.rst

Reads every document in ``bench/figures``. Only the sentences around the tables are written by hand.
A figure that misses its goal is marked. A failed or skipped measurement shows the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

FIGURES = Path(__file__).parent / "figures"
MISSED = "**missed**"
REACHED = "reached"

Map: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Iterable[Sequence[str]]

INTRO = """
Figures
=======

This page shows what the programs in ``bench/`` measured. ``python -m bench.page`` prints it from the documents in
``bench/figures``, which those programs printed. `bench/README.rst <../bench/README.rst>`_ explains what each program
measures and how. Servers, peers and clients share the named machine, so a system of three servers pays for all three
on it. You can compare the figures of one column, but none of them is a figure for several machines.

If a document has ``runs``, its figures are medians of that number of measurements: three or five. Other figures are
from one measurement. A span after a figure is the lowest and the highest measurement. ``99 %`` is the 99th percentile.
A goal that was missed is marked **missed**.
"""


@frozen
class Section:
    """The section of one benchmark."""

    benchmark: str
    title: str
    command: str
    text: str
    tables: Callable[[Map], Iterator[str]]


def page(documents: Mapping[str, Map]) -> str:
    """Return the whole page; ``documents`` are by benchmark."""
    parts = [INTRO.strip()]
    for section in SECTIONS:
        if section.benchmark not in documents:
            continue  # not measured yet
        document = documents[section.benchmark]
        about = f"``{section.command}`` on {machine_text(document['machine'])}."
        tables = "\n\n".join(section.tables(document))
        parts += [f"{section.title}\n{'-' * len(section.title)}", section.text.strip(), about, tables]
    return "\n\n".join(parts) + "\n"


def stored() -> dict[str, Map]:
    """Return the stored documents, by benchmark.

    If there are two documents of one benchmark, the later one by name wins for figures that both have.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FIGURES.glob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        known = found.setdefault(document["benchmark"], document)
        for name in ("systems", "modes"):
            if name in known:
                known[name] = {**known[name], **document[name]}
    return dict(found)


# --- pieces


def machine_text(said: Map) -> str:
    """Return the description of a machine in one line."""
    return f"{said['cores']} cores ({said['processor']}), {said['memory_mib'] / 1024:.0f} GiB, Python {said['python']}"


def table(head: Sequence[str], rows: Rows) -> str:
    """Return a simple table; its first column must not be empty."""
    cells = [list(head), *([cell or "\\ " for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _goal(reached: bool) -> str:
    return REACHED if reached else MISSED


def _said(found: Map, *names: str, shown: Callable[[float], str] = _count) -> list[str]:
    """Return a number of cells of one measurement; the first one has its range, or the reason if it has no figures."""
    for why in ("error", "skipped"):
        if why in found:
            return [f"{why}: {found[why]}", *[""] * (len(names) - 1)]
    cells = [shown(found[name]) for name in names]
    span = found.get("spread", {}).get(names[0])
    if span:
        cells[0] += f" ({shown(span[0])} to {shown(span[1])})"
    return cells


# --- goals

RATIOS = (
    ("onyxq-embedded-1", "redis-streams", (("1x64", 1.2), ("100x4", 1.2), ("1000x4", 4.0))),
    ("onyxq-zookeeper-3", "nats-jetstream", (("1x64", 0.9), ("100x4", 4.0), ("1000x4", 20.0))),
)
"""A configuration, the system beside it, and for each mode how many times as many tasks per second are the goal."""
LATENCIES_MS = {"onyxq-embedded-1": (2.0, 5.0), "onyxq-zookeeper-3": (6.0, 15.0)}
"""Configuration -> the goals of its median and its 99 %."""
TRANSACTIONS = ("onyxq-zookeeper-3", "64", 2_000)
KEYED_PER_S = 3_000
COSTS_US = {"1x64": 450.0, "100x4": 80.0}
"""Mode -> microseconds of processor time per task with three peers, client and ZooKeeper included."""
SIDES = ("peers", "client", "zookeeper")
TIMES_PLAIN_SPARK = {"frame": 1.3, "sql": 1.3, "function": 3.0}
"""Kind of task -> how many times as long as plain Spark a job may take for its rows."""


def _at_least(value: float, least: float) -> str:
    return f"at least {_count(least)}: {_goal(value >= least)}"


# --- tables


def _lifecycle(document: Map) -> Iterator[str]:
    modes = document["settings"]["modes"].split(",")
    systems, rows = document["systems"], []
    for name, found in systems.items():
        cells = (_said(found["modes"][mode], "tasks_per_second") if "modes" in found else [""] for mode in modes)
        rows.append([f"``{name}``", *(cell for [cell] in cells)])
    yield table(["tasks per second", *(f"``{mode}``" for mode in modes)], rows)
    compared = []
    for ours, theirs, goals in RATIOS:
        for mode, least in goals:
            rates = [systems.get(name, {}).get("modes", {}).get(mode, {}) for name in (ours, theirs)]
            if all("tasks_per_second" in rate for rate in rates):
                ratio = rates[0]["tasks_per_second"] / rates[1]["tasks_per_second"]
                compared.append([f"``{ours}``", f"``{theirs}``", f"``{mode}``", _ratio(ratio), _at_least(ratio, least)])
    yield table(["system", "beside", "mode", "times as fast", "goal"], compared)


def _latency(document: Map) -> Iterator[str]:
    names = ("p50_ms", "p99_ms", "max_ms")
    rows = []
    for name, found in document["systems"].items():
        goals = zip(names, LATENCIES_MS.get(name, ()), strict=False)
        reached = [f"{_ms(most)}: {_goal(found[which] <= most)}" for which, most in goals if which in found]
        rows.append([f"``{name}``", *_said(found, *names, shown=_ms), "; ".join(reached)])
    yield table(["from enqueue to handler", "median", "99 %", "slowest", "goals of median and 99 %"], rows)


def _transactions(document: Map) -> Iterator[str]:
    goals = {TRANSACTIONS[:2]: TRANSACTIONS[2]}
    rows = [
        [
            f"``{name}``",
            lanes,
            *_said(one, "per_second"),
            *_said(one, "p50_ms", "p99_ms", shown=_ms),
            _at_least(one["per_second"], goals[name, lanes]) if (name, lanes) in goals else "",
        ]
        for name, found in document["systems"].items()
        for lanes, one in found["modes"]["one part"].items()
    ]
    yield table(["system", "in flight", "transactions per second", "median", "99 %", "goal"], rows)


def _subsystems(document: Map) -> Iterator[str]:
    for name, found in document["systems"].items():
        for mode, one in found["modes"].items():
            whole = sum(one[side]["us_per_task"] for side in SIDES)
            goal = COSTS_US.get(mode) if name == "onyxq-zookeeper-3" else None
            reached = f"; goal at most {goal:g} µs: {_goal(whole <= goal)}" if goal else ""
            shown = ", ".join(f"{side} {_count(one[side]['us_per_task'])}" for side in SIDES)
            yield f"``{name}``, ``{mode}``: {_count(whole)} µs per task in all ({shown}){reached}."
            parts = [(side, part, us) for side in SIDES for part, us in one[side]["by_subsystem"].items()]
            rows = [
                [side, part, _count(us), f"{100 * us / whole:.0f} %"] for side, part, us in parts if us >= whole / 100
            ]
            yield table(["process", "subsystem", "µs per task", "of all"], rows)


def _leases(document: Map) -> Iterator[str]:
    names = ("p50_ms", "p99_ms", "max_ms")
    rows = [
        [
            name,
            str(found["lapses"]),
            *_said(found, *names, shown=_ms),
            _within(found["max_ms"], found["goal_max_ms"], "ms"),
        ]
        for name, found in document["modes"].items()
    ]
    yield table(["cluster", "lapses", "median", "99 %", "slowest", "goal of the slowest"], rows)


def _taskstore(document: Map) -> Iterator[str]:
    rows = [
        [f"``{name}``", kind, f"``{mode}``", *_said(one, "per_second"), *_said(one, "p50_ms", "p99_ms", shown=_ms)]
        for name, found in document["systems"].items()
        for kind in ("updates", "claims")
        for mode, one in found.get(kind, {}).items()
    ]
    yield table(["system", "calls", "mode", "tasks per second", "median", "99 %"], rows)


def _ordering(document: Map) -> Iterator[str]:
    poison = document["poison"]
    drained = document["throughput"]
    yield (
        f"All keys together drained {_said(drained, 'tasks_per_second')[0]} tasks per second; goal "
        f"{_at_least(drained['tasks_per_second'], KEYED_PER_S)}."
    )
    rows = [
        [title, *_said(poison[name], "p50_ms", "p99_ms", "max_ms", shown=_ms)]
        for name, title in (("without", "without a stuck key"), ("with", "with one"))
    ]
    yield table(["lateness of the other keys", "median", "99 %", "slowest"], rows)
    yield (
        f"A stuck key makes the 99 % lateness {_ratio(poison['p99_ratio'])} times as long; goal at most "
        f"{poison['goal_p99_ratio']}: {_goal(poison['reached'])}."
    )


def _timers(document: Map) -> Iterator[str]:
    rows = []
    for name, found in document["modes"].items():
        wanted = ("p50_ms", "p99_ms", "max_ms")
        goals = [
            f"{title} {_ms(found[goal])}: {_goal(found[name] <= found[goal])}"
            for title, name, goal in (
                ("median", "p50_ms", "goal_p50_ms"),
                ("99 %", "p99_ms", "goal_p99_ms"),
                ("slowest", "max_ms", "goal_max_ms"),
            )
            if goal in found
        ]
        rows.append([name, *_said(found, *wanted, shown=_ms), "; ".join(goals)])
    yield table(["lateness", "median", "99 %", "slowest", "goals"], rows)


def _sync(document: Map) -> Iterator[str]:
    rows = [
        [title, _count(one["tasks_per_s"]), f"{one['mb_per_s']:.3g} MB/s", f"{one['seconds']:.1f} s"]
        for title, one in (("idle", document["idle"]), ("under load", document["loaded"]))
    ]
    yield table(["a wiped node is filled", "tasks per second", "data", "in"], rows)
    yield (
        f"Meanwhile clients kept {100 * document['load_kept']:.0f} % of their speed; goal at least "
        f"{100 * document['goal_load_kept']:.0f} %: {_goal(document['reached'])}."
    )


def _idle(document: Map) -> Iterator[str]:
    rows = [
        [
            name,
            *(f"{share:.2f} %" for share in (min(one["peers"]), max(one["peers"]), one["zookeeper"])),
            _within(max(one["peers"]), one["goal"], "%"),
        ]
        for name, one in document["modes"].items()
    ]
    yield table(["percent of a core", "a peer at least", "at most", "ZooKeeper", "goal of a peer"], rows)


def _backlog(document: Map) -> Iterator[str]:
    goals = document["settings"]["goals"]
    for name, found in document["systems"].items():
        yield f"``{name}``:"
        small, large = found["small"], found["large"]
        rows = [
            [
                kind,
                _ms(small["claims"][kind]["p99_ms"]),
                _ms(large["claims"][kind]["p99_ms"]),
                _ratio(ratio["p99_ms"]),
                _goal(ratio["p99_ms"] <= goals["claim_p99_ratio"]),
            ]
            for kind, ratio in found["claim_ratio"].items()
        ]
        few, many = _count(document["settings"]["small"]), _count(document["settings"]["tasks"])
        head = ["claims, 99 %", f"{few} tasks", f"{many} tasks", "ratio", f"at most {goals['claim_p99_ratio']}"]
        yield table(head, rows)
        yield table(["measured with " + many + " tasks", "figure", "goal"], _of_backlog(found, goals))


def _of_backlog(found: Map, goals: Map) -> Iterator[Sequence[str]]:
    own = max(found["large"]["memory_mib_after"]["own"])
    yield "memory of a peer without LMDB's files", f"{own:.0f} MiB", _within(own, goals["own_mib"], "MiB")
    lists = found["large"]["lists"]
    yield "counts of all queues", _ms(lists["count"]["p50_ms"]), ""
    yield "a page of 100 tasks", _ms(lists["page"]["p50_ms"]), ""
    restart = found["restart"]
    if "one_s" in restart:
        one_s = restart["one_s"]
        yield "a killed peer serves again after", f"{one_s} s", _within(one_s, goals["restart_s"], "s")
    yield "all peers killed: first claim after", f"{restart['first_claim_s']} s", ""
    if "tasks_per_s" in found.get("scrub", {}):
        yield "stores are scrubbed at", f"{_count(found['scrub']['tasks_per_s'])} tasks/s", ""
    if "refill" in found:
        refill = found["refill"]
        yield "a wiped node is filled in", f"{refill['idle']['seconds']:.1f} s", ""
        yield "the same under load in", f"{refill['loaded']['seconds']:.1f} s", ""
        kept = f"at least {100 * goals['load_kept']:.0f} %: {_goal(refill['load_kept'] >= goals['load_kept'])}"
        yield "speed that clients keep meanwhile", f"{100 * refill['load_kept']:.0f} %", kept


def _spark(document: Map) -> Iterator[str]:
    if "jobs" in document:
        yield from _jobs(document["jobs"])
    if "source_rows_per_s" in (queues := document.get("queues", {})):
        rows = [
            ["source: a queue", "``rate-micro-batch``", "source_rows_per_s", "rate_source_rows_per_s"],
            ["sink: a queue", "Parquet files", "sink_rows_per_s", "parquet_sink_rows_per_s"],
        ]
        shown = [[ours, _count(queues[one]), theirs, _count(queues[two])] for ours, theirs, one, two in rows]
        yield table(["queues in Spark", "rows per second", "beside", "rows per second"], shown)


def _jobs(found: Map) -> Iterator[str]:
    rows, small = [], []
    for output in ("parquet", "delta"):
        plain = found[f"plain_spark_to_{output}"]
        rows.append(["plain Spark", output, _count(plain["rows_per_s"]), "", *_needs(plain), ""])
        if (beside := found.get(f"plain_spark_function_to_{output}")) is not None:
            times = plain["rows_per_s"] / beside["rows_per_s"]
            rows.append(
                ["plain Spark, function", output, _count(beside["rows_per_s"]), _ratio(times), *_needs(beside), ""]
            )
        for task, most in TIMES_PLAIN_SPARK.items():
            one = found[f"{task}_to_{output}"]
            times = plain["rows_per_s"] / one["rows_per_s"]
            rows.append(
                [task, output, _count(one["rows_per_s"]), _ratio(times), *_needs(one), _within(times, most, "")]
            )
    head = ["task", "output", "rows per second", "times plain Spark's time", "first batch after", "memory", "goal"]
    yield table(head, rows)
    for task in ("plain_spark", "sql", "function"):
        one = found[f"{task}_small_batches"]
        small.append([task.replace("_", " "), _ms(one["batch_p50_ms"])])
    yield table(["batches of ten rows", "median of a batch"], small)


def _needs(one: Map) -> tuple[str, str]:
    return f"{one['start_s']:.1f} s", f"{_count(one['memory_mib'])} MiB"


def _within(value: float, most: float, unit: str) -> str:
    return f"at most {most} {unit}".rstrip() + f": {_goal(value <= most)}"


SECTIONS = (
    Section(
        "lifecycle",
        "Enqueue, claim, complete",
        "python -m bench.lifecycle",
        "Tasks per second that go through all three steps. ``1x64``: single tasks, 64 in flight. ``100x4`` and\n"
        "``1000x4``: batches of 100 and 1,000 tasks, four batches in flight. Every system that can sync every write\n"
        "does so. Only OnyxQ with three peers and JetStream keep three copies, and JetStream does not sync them.",
        _lifecycle,
    ),
    Section(
        "latency",
        "From enqueue to the handler",
        "python -m bench.latency",
        "100 tasks per second are enqueued, and eight workers wait for them.",
        _latency,
    ),
    Section(
        "transactions",
        "Transactions",
        "python -m bench.transactions",
        "Each transaction completes a claimed task and enqueues another. Median and 99 % refer to the time of one\n"
        "transaction.",
        _transactions,
    ),
    Section(
        "subsystems",
        "Processor time",
        "python -m bench.subsystems",
        "Microseconds of processor time per task that goes through all three steps, and which part of OnyxQ takes\n"
        "them. Parts below one percent are left out. ZooKeeper's processes are measured as a whole.",
        _subsystems,
    ),
    Section(
        "leases",
        "Lapsed leases",
        "python -m bench.leases",
        "A worker with a claim disappears. The delay is the time from the end of its lease until a worker that waits\n"
        "at another peer has the task. ``idle``: the cluster does nothing else. ``busy``: other tasks are enqueued,\n"
        "claimed and completed without a pause.",
        _leases,
    ),
    Section(
        "taskstore",
        "The task store",
        "python -m bench.taskstore",
        "``BATCHxLANES``: one request changes or claims ``BATCH`` tasks atomically, and ``LANES`` requests are in\n"
        "flight. Median and 99 % refer to the time of one request. The goal is 2,000 updates per second, in batches.",
        _taskstore,
    ),
    Section(
        "timers",
        "Timers",
        "python -m bench.timers",
        "50,000 delayed tasks fall due, spread over a minute. With 30 kills, 20,000 tasks are spread over 450\n"
        "seconds. Lateness is the time from the due time, by the leaders' clock, until a worker may begin. None began\n"
        "early, and none was lost. Workers claim tasks up to 0.5 seconds before they are due. At 50,000 tasks a\n"
        "minute the three peers, ZooKeeper and the client keep both cores almost fully busy.",
        _timers,
    ),
    Section(
        "ordering",
        "Ordering keys",
        "python -m bench.ordering",
        "Workers first drain stored tasks of 100 keys. Then new tasks of 100 keys arrive at a steady rate. Their\n"
        "lateness is the time from enqueue to claim. It is measured without and with one more key that is stuck: its\n"
        "first task always fails, and 5,000 tasks wait after it.",
        _ordering,
    ),
    Section(
        "backlog",
        "Large backlogs",
        "python -m bench.backlog",
        "The same cluster is measured with few stored tasks and with many. ``ready x100`` claims 100 tasks in each\n"
        "request; the other rows claim one. Tasks of ``ready`` were enqueued in batches, and those of ``single`` one\n"
        "by one. Those of ``keyed`` have ordering keys.",
        _backlog,
    ),
    Section(
        "spark",
        "Jobs on Spark",
        "python -m bench.spark",
        "A job reads Parquet files, computes a column with one task, and writes the rows to Parquet or to a Delta\n"
        "table. Plain Spark, with its default settings, does the same in the same batches. It writes to Delta with\n"
        "``foreachBatch`` and the package deltalake. Each measurement starts its own processes. Rates leave out the\n"
        "first batch, and the time until the first batch includes the start of Spark. ``frame``, ``sql`` and\n"
        "``function`` are kinds of tasks.",
        _spark,
    ),
    Section(
        "sync",
        "Refilling a node",
        "python -m bench.sync",
        "A node's store is removed, and the node is started again.",
        _sync,
    ),
    Section(
        "idle",
        "Nothing to do",
        "python -m bench.idle",
        "Processor use of a cluster of three peers over a minute: without a client, and with 64 workers that wait on\n"
        "queues without tasks.",
        _idle,
    ),
)


if __name__ == "__main__":
    sys.stdout.write(page(stored()))
