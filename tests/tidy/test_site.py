"""The documentation is built without a warning, and has everything that the code declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import onyxq
from onyxq.core.errors import BY_CODE, OnyxqError, by_code
from onyxq.interfaces.cli.commands.all import COMMANDS
from onyxq.interfaces.http.app import ENDPOINTS
from onyxq.system.metrics import Metrics
from onyxq.system.settings import SETTINGS
from tests.tidy.rules import ROOT

SECONDS_MAX = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pages as a user does."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(made / "doctrees")]
    ended = subprocess.run(
        [*command, str(ROOT / "docs"), str(made / "pages")],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 0, ended.stderr
    return made / "pages"


@pytest.mark.long
def test_every_page_is_made_and_none_has_a_warning(site: Path) -> None:
    """Pages without a link to them, dead links and malformed text are warnings."""
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    sources = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.rst")}
    assert sources <= pages


@pytest.mark.long
def test_the_reference_has_all_that_the_code_has(site: Path) -> None:
    """The reference has names of Python, commands, settings, HTTP operations, metrics and errors."""
    metrics = [one.name for one in vars(Metrics()).values() if hasattr(one, "render")]
    errors = [code for code, kind in by_code().items() if kind.__module__ == OnyxqError.__module__]
    assert set(BY_CODE) < set(errors)
    titles = {
        "commands": [f"onyxq {command.name}" for command in COMMANDS],
        "http": [f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if not endpoint.page],
    }
    cells = {"settings": list(SETTINGS), "metrics": metrics, "errors": errors}
    shown = {
        **{page: [f">{title}<a" for title in of_page] for page, of_page in titles.items()},
        **{page: [f'<span class="pre">{cell}</span>' for cell in of_page] for page, of_page in cells.items()},
        "python": [f'id="onyxq.{name}"' for name in onyxq.__all__ if name != "api" and not name.startswith("_")],
    }
    for page, wanted in shown.items():
        text = (site / f"reference/{page}.html").read_text("utf-8")
        missing = [one for one in wanted if one not in text]
        assert wanted and not missing, f"{page}: {missing}"
