"""The installed package has all files of the pages: templates, scripts, styles, and the licences of other authors."""

from __future__ import annotations

import configparser
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "onyxq/interfaces/dashboard"


def test_every_file_of_the_pages_is_installed() -> None:
    """The patterns of ``package_data`` are relative to the package and do not include folders on their own."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    patterns = [one.strip() for one in config["options.package_data"]["onyxq.interfaces.dashboard"].split(",")]
    files = [
        one.relative_to(FOLDER).as_posix() for name in ("templates", "static") for one in (FOLDER / name).iterdir()
    ]
    assert {"templates/base.html", "static/dashboard.css", "static/htmx.min.js"} <= set(files)
    assert [one for one in files if not any(fnmatch(one, pattern) for pattern in patterns)] == []


def test_what_others_wrote_has_its_licence() -> None:
    """The licence is beside each file of other authors."""
    names = {one.name for one in (FOLDER / "static").iterdir()}
    for name, licence in (("htmx.min.js", "htmx-LICENSE.txt"), ("uPlot.iife.min.js", "uPlot-LICENSE.txt")):
        assert {name, licence} <= names
    assert "MIT" in (FOLDER / "static/uPlot-LICENSE.txt").read_text("utf-8")
    assert "Zero-Clause BSD" in (FOLDER / "static/htmx-LICENSE.txt").read_text("utf-8")
