"""A browser for tests: Chromium without a window, if one is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WANTED = os.environ.get("ONYXQ_TEST_BROWSER", "")
"""Path of the browser. If it is set, tests that need a browser fail instead of skipping without one."""
AXE = (Path(__file__).parent / "axe/axe.min.js").read_text("utf-8")
SERIOUS = ("serious", "critical")
LOADED_MS = 60_000


def program() -> str:
    """Path of a browser; skips without one."""
    found = WANTED or next(filter(None, map(shutil.which, NAMES)), "")
    if not found:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """Run a browser with Playwright."""
    where = program()
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        # A container has no sandbox for Chromium, and little shared memory.
        running = driver.chromium.launch(executable_path=where, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield running
        finally:
            running.close()


class Tab:
    """A page of the browser, with everything that the browser complained about."""

    def __init__(self, running: Any, **how: Any) -> None:
        self._context = running.new_context(**how)
        self._context.set_default_timeout(LOADED_MS)
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        """Questions of the page, if a test accepts them."""
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 400" not in message.text:
            self.complaints.append(message.text)

    def open(self, url: str) -> Any:
        """Open a page and wait until its scripts have run."""
        self.page.goto(url, wait_until="load")
        return self.page

    def findings(self) -> list[str]:
        """Return axe's findings that are serious or worse."""
        self.page.evaluate(AXE)
        found = self.page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
        return [
            f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in SERIOUS
        ]
