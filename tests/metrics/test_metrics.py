"""One workload moves every metric and every panel of the board; every alert fires where it should, and only there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from onyxq.system.metrics import Histogram, Metrics
from tests.metrics.conditions import CONDITIONS, HEALTHY
from tests.metrics.prometheus import JOB, Prometheus, promtool, serving
from tests.metrics.workload import DECLARED, Recorded, run
from tests.tidy.rules import ROOT

BOARD = json.loads((ROOT / "examples/deploy/grafana/onyxq.json").read_text("utf-8"))
RULES = ROOT / "examples/deploy/prometheus/onyxq.rules.yaml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]}
TARGETS = [
    pytest.param(target["expr"], id=f"{panel['title']}-{number}")
    for panel in BOARD["panels"]
    for number, target in enumerate(panel.get("targets", ()))
]
PAGE = ROOT / "docs/reference/metrics.rst"
TABLE_BEGINS = ".. What the tests saw\n\n"


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """The workload, run once."""
    return run()


@pytest.fixture(scope="module")
def prometheus(recorded: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped the workload."""
    with serving(recorded, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


def values_of(name: str) -> list[str]:
    """Return the values of a metric's last label that its description lists after a colon."""
    metric = DECLARED[name]
    listed = re.search(r": (\w+(?:, \w+)+)\.$", metric.doc)
    if isinstance(metric, Histogram) or listed is None:
        return []
    return [f'{name}{{{metric.labels[-1]}="{value}"}}' for value in listed[1].split(", ")]


@pytest.mark.long
def test_the_workload_moves_every_metric(recorded: Recorded) -> None:
    """This includes each value that the description of a label lists. Only the program's version stands still."""
    wanted = [one for name in DECLARED for one in (name, *values_of(name))]
    assert 'onyxq_tasks_total{event="retried"}' in wanted and 'onyxq_repaired_total{what="indexes"}' in wanted
    assert not [one for one in wanted if one not in recorded.moved]


def test_the_reference_says_what_moved_each_metric(recorded: Recorded) -> None:
    """The table is printed from a run."""
    rows = [f"* - ``{name}``\n     - {recorded.moved[name]}" for name in DECLARED]
    table = "\n   ".join([".. list-table::\n   :header-rows: 1\n", "* - Metric\n     - What moved it first", *rows])
    _, found, told = PAGE.read_text("utf-8").partition(TABLE_BEGINS)
    assert found and told == table + "\n", f"the table must be:\n\n{table}"


@pytest.mark.parametrize("expression", TARGETS)
def test_every_panel_draws_what_the_workload_does(prometheus: Prometheus, expression: str) -> None:
    """Its query finds series, and values other than 0."""
    drawn = prometheus.drawn(expression.replace("$job", JOB).replace("$queue", ".*"))
    assert drawn, "no series"
    assert any(value for values in drawn.values() for value in values), drawn


def test_the_boards_variables_have_values(prometheus: Prometheus) -> None:
    """The lists of jobs and queues come from labels that exist."""
    for variable in BOARD["templating"]["list"][1:]:
        ((expression, label),) = re.findall(r"^label_values\((.*), (\w+)\)$", variable["query"]["query"])
        assert prometheus.drawn(f"count by ({label}) ({expression.replace('$job', JOB)})")


def test_prometheus_finds_no_fault_with_the_text_and_the_rules(tmp_path: Path) -> None:
    """Names and units are as it advises, and the rules can be loaded."""
    metrics = Metrics()
    metrics.tasks.add("q", "failed")
    promtool("check", "metrics", cwd=tmp_path, given=metrics.text())
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES), cwd=tmp_path)


def test_every_alert_has_a_condition_made_for_it() -> None:
    """A new alert is not forgotten."""
    assert set(CONDITIONS) == set(ALERTS)


def check_rules(tmp_path: Path, evaluated: str, test: dict[str, Any]) -> None:
    """Have promtool run one test of the rules; its series have a value each minute."""
    tests = {"rule_files": [str(RULES)], "evaluation_interval": evaluated, "tests": [{"interval": "1m", **test}]}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests), "utf-8")
    promtool("test", "rules", "tests.yaml", cwd=tmp_path)


def given(series: dict[str, str]) -> list[dict[str, str]]:
    """Return series as promtool reads them."""
    return [{"series": one, "values": values} for one, values in series.items()]


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_alert_fires_in_its_condition(name: str, tmp_path: Path) -> None:
    """Its labels and its summary are as an operator reads them."""
    made = CONDITIONS[name]
    fires = {
        "exp_labels": {"severity": ALERTS[name]["labels"]["severity"], **made.labels},
        "exp_annotations": {"summary": made.summary, "runbook": ALERTS[name]["annotations"]["runbook"]},
    }
    expected = {"eval_time": made.after, "alertname": name, "exp_alerts": [fires]}
    check_rules(tmp_path, made.evaluated, {"input_series": given(made.series), "alert_rule_test": [expected]})


def test_no_alert_is_near_in_a_healthy_cluster(tmp_path: Path) -> None:
    """None fires, and none would if this lasted."""
    expected = {"expr": "ALERTS", "eval_time": "2h", "exp_samples": []}
    check_rules(tmp_path, "1m", {"input_series": given(HEALTHY), "promql_expr_test": [expected]})
