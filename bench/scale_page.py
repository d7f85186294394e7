"""Makes the page about scale from the document of `bench.scale`.

    python -m bench.scale_page > docs/scale.rst

The text is in ``bench/scale_page.rst``. A line ``.. figures:: NAME`` there becomes the table of that name.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

from bench import scale_model as model
from bench.page import FIGURES, Map, machine_text, table
from onyxq.history.claim_rows import LAZY_FLUSH_S
from onyxq.log.outbox import FREE_PER_S, PAUSE_MAX_S, PAUSE_PER_RATE_S

TEXT = Path(__file__).with_suffix(".rst")
RATES = (1_000, 10_000, 100_000)
GROUPS = (1, 2, 4, 8, 16, 32, 64, 128)
_TABLE = re.compile(r"^\.\. figures:: (\w+)$", re.MULTILINE)


def page(document: Map) -> str:
    """Return the whole page."""
    return _TABLE.sub(lambda found: TABLES[found[1]](document), TEXT.read_text("utf-8"))


def stored() -> Map:
    """Return the stored document."""
    found: Map = json.loads((FIGURES / "scale.json").read_text("utf-8"))
    return found


def _us(ms: float) -> str:
    return f"{_two(1000 * ms)} µs"


def _two(value: float) -> str:
    """Return a number with two digits that mean something."""
    if value == 0:
        return "0"
    digits = 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(0, digits)}f}"


# --- measured


def _machine(document: Map) -> str:
    return f"``python -m bench.scale`` on {machine_text(document['machine'])}."


def _tasks(document: Map) -> str:
    rows = []
    for text, name in model.LOADS.items():
        for peers in sorted({one["peers"] for one in document["clusters"]}):
            one = model.best(document, peers, text)
            tasks = one["tasks"]
            parts = (sum(one["peers_cpu_ms"]), one["zookeeper_cpu_ms"], one["clients_cpu_ms"])
            figures = [_us(part / tasks) for part in (*parts, sum(parts))]
            records = f"{_two(one['records'] / one['seconds'])}/s"
            rows.append([name, str(peers), _two(one["records"] / tasks), records, *figures])
    return table(["calls", "peers", "records per task", "records", "all peers", "ZooKeeper", "clients", "sum"], rows)


def _reading(document: Map) -> str:
    costs = model.costs_of(document)
    rows = [
        [f"a record without entries, at {rate:,.0f} per second", _us(cost), f"{rate * cost / 10:.0f} %"]
        for rate, cost in costs.empty
    ]
    commits = 1 / LAZY_FLUSH_S
    rows.append([f"a commit of the store, at most {commits:.0f} per second", _us(costs.commit), ""])
    rows.append(["an entry with grants", _us(costs.entry), ""])
    rows.append(["a grant in it", _us(costs.grant), ""])
    rows.append(["an idle peer", "", f"{costs.idle / 10:.1f} %"])
    return table(["what reading costs each peer", "each", "of a core"], rows)


def _simulated(document: Map) -> str:
    rows = [
        [
            str(one["peers"]),
            f"{one['unpaced']['records_per_s']:,}",
            f"{one['paced']['records_per_s']:,}",
            f"{one['unpaced']['wait_ms']} ms",
            f"{one['paced']['wait_ms']} ms",
        ]
        for one in document["simulated"]
    ]
    return table(["peers", "records/s without pauses", "records/s", "median wait without pauses", "median wait"], rows)


def _paced(document: Map) -> str:
    rows = []
    for one in document["paced"]:
        for text, found in one["modes"].items():
            tasks = found["tasks"]
            used = sum(found["peers_cpu_ms"]) + found["zookeeper_cpu_ms"] + found["clients_cpu_ms"]
            rate, pace = found["records"] / found["seconds"], one["pace"].partition(",")[0]
            lanes = text.partition("x")[2].partition("/")[0]
            above = f"{pace}/s" if pace else ""
            figures = [f"{_two(rate)}/s", f"{_two(tasks / found['seconds'])}/s", _two(found["records"] / tasks)]
            rows.append([str(one["peers"]), lanes, above, *figures, _us(used / tasks)])
    return table(["peers", "in flight", "pauses above", "records", "tasks", "records per task", "sum per task"], rows)


# --- modelled


def _rule(document: Map) -> str:
    return (
        f"A peer does not pause while the others write up to {FREE_PER_S:,.0f} records per second. Above that rate it\n"
        f"pauses after each of its records: {1000 * PAUSE_PER_RATE_S:g} ms for each record per second more, at most "
        f"{1000 * PAUSE_MAX_S:.0f} ms."
    )


def _short(document: Map) -> str:
    costs = model.costs_of(document)
    limits = [f"{_two(model.limit(costs, load))} in {load.name}" for load in model.loads_of(document).values()]
    return f"* One log with {model.PEERS_MAX} peers carries these tasks per second:\n  {', '.join(limits)}."


def _formula(document: Map) -> str:
    costs = model.costs_of(document)
    return (
        f"    idle + R * (cost of a record at rate R) + commits * {_us(costs.commit)} + E * {_us(costs.entry)}"
        f" + G * {_us(costs.grant)}"
    )


def _limits(document: Map) -> str:
    costs = model.costs_of(document)
    rows = [
        [load.name, f"{_two(model.limit(costs, load))}/s", f"{_two(model.reading_limit(costs, load))}/s"]
        for load in model.loads_of(document).values()
    ]
    return table(["one log", f"{model.PEERS_MAX} peers carry", "only reading at"], rows)


def _sizes(document: Map) -> str:
    costs, rows = model.costs_of(document), []
    for rate in RATES:
        for load in model.loads_of(document).values():
            found = [plan for groups in GROUPS if (plan := model.plan(costs, load, rate, groups=groups)) is not None]
            best = found[0] if found[0].groups == 1 else min(found, key=lambda plan: plan.total)
            rows.append([f"{rate:,}/s", load.name, *_cells(best), _two(rate * load.client / 1000)])
    return table(["tasks", "calls", *_HEADS, "client cores"], rows)


def _groups(document: Map) -> str:
    costs, rows = model.costs_of(document), []
    for load in model.loads_of(document).values():
        for groups in GROUPS:
            found = model.plan(costs, load, RATES[-1], groups=groups)
            rows += [[load.name, *_cells(found)]] if found is not None else []
            if found is not None and found.peers == model.PEERS_MIN:
                break
    return table(["calls", *_HEADS], rows)


_HEADS = ("logs", "peers", "core used", "by reading", "records", "ZooKeepers", "peer writes")


def _cells(found: model.Plan) -> list[str]:
    several = f"{found.groups} x " if found.groups > 1 else ""
    return [
        str(found.groups),
        f"{several}{found.peers}",
        f"{100 * found.use:.0f} %",
        f"{100 * found.reading:.0f} %",
        f"{several}{_two(found.records)}/s",
        f"{several}{found.servers}",
        f"{_two(found.peer_mb_s)} MB/s",
    ]


def _checked(document: Map) -> str:
    rows = []
    for text, name in model.LOADS.items():
        for peers, measured, modelled in model.checked(document, text):
            error = f"{100 * (modelled / measured - 1):+.0f} %" if peers > model.PEERS_MIN else "taken from it"
            rows.append([name, str(peers), _us(measured), _us(modelled), error])
    return table(["all peers, per task", "peers", "measured", "model", "error"], rows)


TABLES: dict[str, Callable[[Map], str]] = {
    "machine": _machine,
    "tasks": _tasks,
    "reading": _reading,
    "simulated": _simulated,
    "paced": _paced,
    "rule": _rule,
    "short": _short,
    "formula": _formula,
    "limits": _limits,
    "sizes": _sizes,
    "groups": _groups,
    "checked": _checked,
}
"""Name in the text -> what takes its place."""


if __name__ == "__main__":
    sys.stdout.write(page(stored()))
