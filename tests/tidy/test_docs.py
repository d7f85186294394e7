"""The documents fit the code: generated pages are fresh, links lead somewhere, RST is well-formed."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import NoReturn

import pytest

from bench import page as figures
from bench import scale_page
from log_entries.__main__ import page
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import Parser, build
from onyxq.system.settings import SETTINGS
from tests.tidy.rules import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.rst"), *ROOT.glob("docs/**/*.rst")])
SOME_ID = "00" * 20
_LINK = re.compile(r"`[^`<\n]+(?:\n[^`<\n]+)?<([^>\n]+)>`_")
_COMMAND = re.compile(r"``onyxq ([a-z ]+)")


def test_the_entries_page_is_fresh() -> None:
    """``docs/entries.rst`` is what ``python -m log_entries`` prints."""
    assert (ROOT / "docs/entries.rst").read_text("utf-8") == page(), "python -m log_entries > docs/entries.rst"


def test_the_page_of_figures_is_fresh() -> None:
    """``docs/performance.rst`` is what ``python -m bench.page`` makes of the documents of measurements."""
    text = (ROOT / "docs/performance.rst").read_text("utf-8")
    assert text == figures.page(figures.stored()), "python -m bench.page > docs/performance.rst"


def test_the_page_about_scale_is_fresh() -> None:
    """``docs/scale.rst`` is what ``python -m bench.scale_page`` makes of its text and the document of measurements."""
    text = (ROOT / "docs/scale.rst").read_text("utf-8")
    assert text == scale_page.page(scale_page.stored()), "python -m bench.scale_page > docs/scale.rst"


def test_a_failed_measurement_is_told_on_the_page_of_figures() -> None:
    """A failed measurement is neither left out nor ends the page."""
    documents = {name: json.loads(json.dumps(found)) for name, found in figures.stored().items()}
    systems = documents["lifecycle"]["systems"]
    for mode in next(iter(systems.values()))["modes"]:
        next(iter(systems.values()))["modes"][mode] = {"error": "LostTasks: 3 tasks"}
    assert "error: LostTasks: 3 tasks" in figures.page(documents)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document names an existing file."""
    for target in _LINK.findall(document.read_text("utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_named_exist(document: Path) -> None:
    """Every command in a text exists."""
    names = {command.name for command in COMMANDS} | set(NOUNS)
    for said in _COMMAND.findall(document.read_text("utf-8")):
        words = said.split()
        assert " ".join(words[:2]) in names or words[0] in names, said


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_that_are_shown_can_be_typed(document: Path) -> None:
    """Every command line of an indented block parses, apart from shell syntax."""
    text = document.read_text("utf-8").replace("\\\n", " ")
    for line in re.findall(r"^ {3,}(?:\$ )?onyxq (.+)$", text, re.MULTILINE):
        typed = shlex.split(line.replace("$first", SOME_ID).replace("$second", SOME_ID), comments=True)
        ends = [place for place, word in enumerate(typed) if word in ("|", ">", "&", "&&", ";", "...")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Parser, "error", _refuse)
            assert build(COMMANDS, NOUNS).parse_args(typed[: min(ends, default=None)]).command, line


def _refuse(_: Parser, message: str) -> NoReturn:
    raise AssertionError(message)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_that_is_shown_is_python(document: Path) -> None:
    """Every block compiles. Tests of each page check what it does."""
    text = document.read_text("utf-8")
    for _, block in re.findall(r"^( *)\.\. code-block:: python\n((?:\1 {3}.*\n|\n)+)", text, re.MULTILINE):
        code = "\n".join(line for line in textwrap.dedent(block).splitlines() if not line.startswith(":"))
        compile(code, document.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_setting_is_documented() -> None:
    """The operations page has all settings with their defaults."""
    text = (ROOT / "docs/operations.rst").read_text("utf-8")
    for name, known in SETTINGS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"``{name}``"))
        assert known.default in (None, "") or f"``{known.default}``" in row


def test_every_document_starts_with_a_title() -> None:
    """The first line is underlined along its length, so that it is a title in reStructuredText."""
    for document in DOCUMENTS:
        title, underline = document.read_text("utf-8").splitlines()[:2]
        assert underline == "=" * len(title), document.name


def test_the_parser_can_be_built_for_every_command() -> None:
    """No two declared commands conflict."""
    assert build(COMMANDS, NOUNS)
    assert len({command.name for command in COMMANDS}) == len(COMMANDS)
