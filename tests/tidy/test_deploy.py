"""The files of examples/deploy match the program: commands, settings, paths, ports, metrics and runbooks exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from onyxq.access.credential_files import load_access
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import build
from onyxq.interfaces.http.app import ENDPOINTS
from onyxq.system.metrics import Histogram, Metrics
from onyxq.system.settings import SETTINGS
from tests.tidy.rules import ROOT

DEPLOY = ROOT / "examples/deploy"
METRICS = {one.name: one for one in vars(Metrics()).values() if hasattr(one, "render")}
SERIES = {
    **{name: set(getattr(one, "labels", ())) for name, one in METRICS.items() if not isinstance(one, Histogram)},
    **{f"{name}_bucket": {"le"} for name, one in METRICS.items() if isinstance(one, Histogram)},
}
"""Series -> its labels, for all series that expressions may use."""
OF_PROMETHEUS = {"job", "instance"}
PATHS = {endpoint.path for endpoint in ENDPOINTS}
UNITS = sorted((DEPLOY / "systemd").iterdir())
RULES = yaml.safe_load((DEPLOY / "prometheus/onyxq.rules.yaml").read_text("utf-8"))["groups"][0]["rules"]
BOARD = json.loads((DEPLOY / "grafana/onyxq.json").read_text("utf-8"))
COMPOSE = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text("utf-8"))
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/onyxq.yaml").read_text("utf-8")))


def check_expression(text: str) -> set[str]:
    """Return the series of an expression; fail for an unknown series or label."""
    selectors = re.findall(r"\b(onyxq_\w+|up)\b(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', text))
    for name, labels in selectors:
        known = SERIES[name] | OF_PROMETHEUS if name != "up" else OF_PROMETHEUS
        asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", labels))
        assert asked <= known, f"{name} has no label {asked - known}"
    grouped = {label for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", text) for label in re.split(r",\s*", found)}
    assert grouped <= OF_PROMETHEUS.union(*(SERIES.get(name, set()) for name, _ in selectors)), text
    assert text.count("(") == text.count(")") and text.count("{") == text.count("}")
    return {name for name, _ in selectors}


def parsed(words: list[str]) -> Any:
    """Return a parsed command line of ``onyxq``; exit if it is invalid."""
    return build(COMMANDS, NOUNS).parse_args(words)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_measured_and_has_a_runbook(rule: dict[str, Any]) -> None:
    """Metrics and labels exist, the summary's placeholders are filled, and the runbooks have a section."""
    assert check_expression(rule["expr"])
    assert {"severity"} == set(rule["labels"]) and rule["annotations"]["summary"]
    title = rule["annotations"]["runbook"]
    assert f"\n{title}\n{'-' * len(title)}\n" in (ROOT / "docs/runbooks.rst").read_text("utf-8")
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        grouped = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        assert label in re.findall(r"\w+", grouped[1] if grouped else "instance what"), label


def test_every_panel_asks_for_what_is_measured() -> None:
    """Every metric is on the board, so that a new one is not forgotten."""
    asked: set[str] = set()
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            asked |= check_expression(target["expr"].replace("$job", "").replace("$queue", ""))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= OF_PROMETHEUS.union(*SERIES.values())
    not_drawn = {"onyxq_scrub_rounds_total", "onyxq_sync_rows_total"}
    missing = set(SERIES) - asked - not_drawn
    assert not missing, f"on no panel: {missing}"


def test_panels_do_not_lie_on_each_other() -> None:
    """Each has a number and a place of its own."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def unit(path: Any) -> configparser.ConfigParser:
    """A unit of systemd."""
    found = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text("utf-8"))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_what_there_is(path: Any) -> None:
    """The commands parse and the settings exist."""
    found = unit(path)
    assert {"Unit", "Service", "Install"} == set(found.sections())
    assert found["Unit"]["StartLimitIntervalSec"] == "0", "it would be given up while something else is away"
    service = found["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        if key in service:
            program, *words = shlex.split(service[key].replace("${CONCURRENCY}", "1").replace("${APP}", "a:app"))
            assert program.endswith("/onyxq") and parsed(words).command
    text = path.read_text("utf-8")
    assert {name.lower() for name in re.findall(r"ONYXQ_(\w+)", text)} <= set(SETTINGS)


def complaints(name: str, text: str, home: Path) -> list[str]:
    """Return systemd's complaints about a unit whose program exists."""
    path = home / name.replace("@", "@shop")
    path.write_text(text.replace("/opt/onyxq/bin/onyxq", "/bin/true"), "utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr
    return [line for line in told.splitlines() if path.name in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_a_unit(path: Path, tmp_path: Path) -> None:
    """Every key and value is known; a misspelt one is reported."""
    text = path.read_text("utf-8")
    assert complaints(path.name, text, tmp_path) == []
    assert complaints(path.name, text.replace("RestartSec=2", "RestartSex=2"), tmp_path) != []


def test_the_peer_s_unit_waits_for_readiness_and_has_a_watchdog() -> None:
    """The notifications of the program are used."""
    service = unit(DEPLOY / "systemd/onyxq-peer.service")["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) >= 10 and int(service["TimeoutStopSec"]) > 60


def test_the_image_runs_a_peer() -> None:
    """Its entry point with the default arguments is a command; its ports are the default ports."""
    text = (DEPLOY / "container/Containerfile").read_text("utf-8")
    lines = {key: json.loads(value) for key, value in re.findall(r"^(ENTRYPOINT|CMD) (.+)$", text, re.MULTILINE)}
    assert lines["ENTRYPOINT"] == ["onyxq"] and parsed(lines["CMD"]).command.name == "peer start"
    (ports,) = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert ports.split() == [str(SETTINGS[name].default).rpartition(":")[2] for name in ("listen", "http")]
    assert {name.lower() for name in re.findall(r"ONYXQ_(\w+)=", text)} <= set(SETTINGS)


def test_the_manifests_fit_together_and_the_program() -> None:
    """Selectors, ports, probes, arguments, settings, anti-affinity, and time to drain."""
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in MANIFESTS}
    pods = by_kind["StatefulSet", "onyxq"]["spec"]
    labels, spec = pods["template"]["metadata"]["labels"], pods["template"]["spec"]
    headless = by_kind["Service", pods["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    for service in (headless, by_kind["Service", "onyxq"]["spec"]):
        assert service["selector"].items() <= labels.items()
    budget = by_kind["PodDisruptionBudget", "onyxq"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items() and budget["maxUnavailable"] == 1
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == labels and apart["topologyKey"] == "kubernetes.io/hostname"

    (container,) = spec["containers"]
    args = parsed(container["args"])
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert (
        args.listen == f"$(POD_NAME).{pods['serviceName']}:{ports['tcp']}" and args.http == f"0.0.0.0:{ports['http']}"
    )
    named = {one["name"] for one in container["env"]} | set(by_kind["ConfigMap", "onyxq"]["data"])
    assert {name.removeprefix("ONYXQ_").lower() for name in named - {"POD_NAME"}} <= set(SETTINGS)
    assert {"ONYXQ_TOKENS", "ONYXQ_PEER_SECRET"} <= named
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] in PATHS
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > pause + 60
    (volume,) = pods["volumeClaimTemplates"]
    assert container["volumeMounts"][0]["name"] == volume["metadata"]["name"]


def test_the_compose_file_fits_together_and_the_program() -> None:
    """Settings, addresses, roles, probes, volumes, commands, and time to drain."""
    services, worker = COMPOSE["services"], COMPOSE["services"]["worker"]
    peers = {name: one for name, one in services.items() if name.startswith("peer-")}
    assert len(peers) == 3
    for name, peer in peers.items():
        settings = peer["environment"]
        assert {key.removeprefix("ONYXQ_").lower() for key in settings} <= set(SETTINGS)
        assert settings["ONYXQ_LISTEN"] == f"{name}:7400" and settings["ONYXQ_HTTP"].endswith(":7480")
        assert settings["ONYXQ_ZOOKEEPER"].partition(":")[0] in services
        grants = re.sub(r"\$\{(\w+):\?missing\}", lambda found: found[1].ljust(16, "."), settings["ONYXQ_TOKENS"])
        assert load_access(tokens=grants, peer_secret="." * 32)
        (path,) = re.findall(r"127\.0\.0\.1:7480(/\w+)'", peer["healthcheck"]["test"][-1])
        assert path in PATHS
        assert (DEPLOY / "compose" / peer["build"]["context"]).resolve() == ROOT
        assert (ROOT / peer["build"]["dockerfile"]).exists()
        assert peer["volumes"] == [f"{name}:/var/lib/onyxq"] and name in COMPOSE["volumes"]
        assert int(peer["stop_grace_period"].rstrip("s")) > 60
    assert len({port for peer in peers.values() for port in peer["ports"]}) == 3
    command = parsed(worker["command"])
    module, _, attribute = command.app.partition(":")
    assert f"{attribute} = App()" in (DEPLOY / f"compose/{module}.py").read_text("utf-8")
    assert worker["environment"]["ONYXQ_CONNECT"].partition(":")[0] in peers
    assert {key.removeprefix("ONYXQ_").lower() for key in worker["environment"]} <= set(SETTINGS)


def test_the_page_names_every_file() -> None:
    """The page names every file, and no other."""
    text = (ROOT / "docs/deploying.rst").read_text("utf-8")
    told = set(re.findall(r"^``(\w+/[^`]+)``", text, re.MULTILINE))
    assert told == {path.relative_to(DEPLOY).as_posix() for path in DEPLOY.rglob("*") if path.is_file()}
    assert {name.lower() for name in re.findall(r"ONYXQ_(\w+)=", text)} <= set(SETTINGS)
