"""Settings of the cluster, its log, and this peer."""

from __future__ import annotations

from starlette.responses import Response

from onyxq.interfaces.dashboard.page import shows
from onyxq.interfaces.dashboard.rendering import page
from onyxq.interfaces.http.endpoint import Call


async def get_settings(call: Call) -> Response:
    """Answer with the page."""
    return page(
        call,
        "settings.html",
        title="Settings",
        here="/ui/settings",
        cluster=await call.ask("cluster"),
        health=await call.ask("health"),
    )


ENDPOINTS = (shows("/ui/settings", "settings_page", get_settings),)
