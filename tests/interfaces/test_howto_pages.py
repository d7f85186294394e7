"""The programs of docs/howto run: each page has the files of a small project, with tests that pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)\.\. code-block:: python\n +:caption: (\S+\.py)\n\n((?:\1 {3}.*\n|\n)+)", re.MULTILINE)
PROJECTS = {
    page.stem: found
    for page in sorted((ROOT / "docs/howto").glob("*.rst"))
    if (found := BLOCK.findall(page.read_text("utf-8")))
}
SECONDS_MAX = 120


def files(page: str) -> dict[str, str]:
    """Return the files of a page, each assembled from its blocks."""
    found: dict[str, str] = {}
    for _, name, block in PROJECTS[page]:
        found[name] = found.get(name, "") + textwrap.dedent(block)
    return found


@pytest.mark.long
@pytest.mark.parametrize("page", PROJECTS)
def test_the_project_of_a_page_passes_its_tests(page: str, tmp_path: Path) -> None:
    """Every test that the page shows passes, in a process of its own."""
    tests = 0
    for name, text in files(page).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
        tests += len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE)) if name.startswith("test_") else 0
    assert tests
    plugins = ("-p", "onyxq.testing.plugin", "-p", "no:cacheprovider")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert int(re.findall(r"(\d+) passed", ended.stdout)[0]) >= tests


def test_most_pages_have_a_project() -> None:
    """The search for blocks finds the pages about programs."""
    assert {"fastapi", "django", "retries", "idempotency", "modules", "leases", "deploys"} == set(PROJECTS)
