"""The programs of docs/outbox.rst run on a real PostgreSQL."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from onyxq.interfaces.cli.main import run

PAGE = (Path(__file__).resolve().parents[2] / "docs/outbox.rst").read_text("utf-8")


@pytest.mark.long
def test_the_programs_run(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with psycopg and SQLAlchemy each write one task; the query at the end counts them."""
    place = urlsplit(database)
    variables = {"HOST": place.hostname, "PORT": place.port, "USER": place.username, "DATABASE": place.path[1:]}
    for name, value in variables.items():
        monkeypatch.setenv(f"PG{name}", str(value))
    assert run(["outbox", "create"]) == 0
    programs = [
        textwrap.dedent(text)
        for text in re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", PAGE)
        if "import App" in text
    ]
    assert len(programs) == 2
    with psycopg.connect() as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    for program in programs:
        (tmp_path / "shop.py").write_text(program)
        made = runpy.run_path(str(tmp_path / "shop.py"), run_name="shop")
        if "engine" in made:
            made["engine"].dispose()
    (query,) = re.findall(r"(SELECT count.*;)", PAGE)
    with psycopg.connect() as connection:
        ((count, _),) = connection.execute(query.encode()).fetchall()
    assert count == 2
