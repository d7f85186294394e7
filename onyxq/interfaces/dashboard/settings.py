"""Settings of the cluster and of this process with their sources, the state of this peer, and its log."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from starlette.responses import Response

from onyxq.core.texts import visible
from onyxq.history import words
from onyxq.interfaces.dashboard.page import shows
from onyxq.interfaces.dashboard.rendering import page, shown
from onyxq.interfaces.http.endpoint import Call
from onyxq.operations.checks.access import Guarded
from onyxq.system.settings import SETTINGS, Setting

FIXED = {"partitions": "parts into which tasks are divided, each with a leader", "replicas": "copies of each partition"}
"""Meaning of the cluster's settings that are no settings of a process."""


@frozen
class Row:
    """A setting on the page."""

    name: str
    value: str
    source: str
    about: str
    is_default: bool


async def get_settings(call: Call) -> Response:
    """Answer with the page."""
    cluster, health = await call.ask("cluster"), await call.ask("health")
    return page(
        call,
        "settings.html",
        title="Settings",
        here="/ui/settings",
        cluster=cluster,
        fixed=[Row(name, _value(name, value), "", _about(name), False) for name, value in cluster["settings"].items()],
        settings=_of_process(call),
        may_see=_may_see(call),
        health=health,
        records=call.kit.past.records_to(health["position"]),
        archive=call.kit.past.archive,
    )


def _may_see(call: Call) -> bool:
    """Return whether the caller may see paths and addresses of this machine."""
    return not isinstance(call.api, Guarded) or call.api.grants.everywhere("operate")


def _of_process(call: Call) -> list[Row]:
    """Return the settings of this process; those without their default come first."""
    if not _may_see(call):
        return []
    rows = [
        Row(one.name, _value(one.name, one.value), _source(one), SETTINGS[one.name].about, one.source == "default")
        for one in call.kit.settings
    ]
    return sorted(rows, key=lambda row: row.is_default)


def _source(one: Setting) -> str:
    kinds = {f"ONYXQ_{one.name.upper()}": "environment", "default": ""}
    kind = "flag" if one.source.startswith("--") else kinds.get(one.source, "file")
    return f"{kind} {one.source}".strip()


def _value(name: str, value: Any) -> str:
    """Return a value in words; times also as a duration."""
    if isinstance(value, str) and value:
        return visible(value)
    return words.duration(value) if name.endswith("_ms") and value is not None else shown(value)


def _about(name: str) -> str:
    return FIXED.get(name) or SETTINGS[name].about.partition(";")[0]


ENDPOINTS = (shows("/ui/settings", "settings_page", get_settings),)
