"""Text is written in plain English, without the words of the list."""

from __future__ import annotations

import ast

import pytest

from tests.tidy import rules, words

PAGES = [
    *sorted(rules.ROOT.glob("*.rst")),
    *sorted(page for top in ("docs", "examples", "bench") for page in (rules.ROOT / top).rglob("*.rst")),
]
STORED = ("goes on", "is no setting", "is no number to set", "is no word to set", "queue is no name of a queue")
"""A value of a setting, and verdicts in logs. They stay as they are, because peers must agree on them."""


def test_pages_use_plain_words() -> None:
    """No page of the documentation uses a word of the list."""
    found = [
        f"{page.relative_to(rules.ROOT)}:{line}: {what}"
        for page in PAGES
        for line, what in words.found_in(words.prose_of_page(page.read_text("utf-8")))
    ]
    assert not found, "\n" + "\n".join(found)


def test_docstrings_use_plain_words() -> None:
    """No docstring uses a word of the list."""
    found = [
        f"{source.path}:{start + line - 1}: {what}"
        for source in rules.sources()
        for start, text in words.texts_of_module(source.tree)
        for line, what in words.found_in(text)
    ]
    assert not found, "\n" + "\n".join(found)


def test_errors_use_plain_words() -> None:
    """No message or hint of an error uses a word of the list."""
    found = [
        f"{source.path}:{start}: {what}"
        for source in rules.sources()
        if source.path.startswith(("onyxq/", "log_entries/"))
        for start, text in words.errors_of_module(source.tree)
        for _, what in words.found_in(text)
    ]
    assert not found, "\n" + "\n".join(found)


def test_strings_use_plain_words() -> None:
    """No text that a program shows, logs or describes uses a word of the list."""
    found = [
        f"{source.path}:{start}: {what}"
        for source in rules.sources()
        if source.path.startswith(("onyxq/", "log_entries/", "bench/", "examples/"))
        for start, text in words.strings_of_module(source.tree)
        if text not in STORED
        for _, what in words.found_in(text)
    ]
    assert not found, "\n" + "\n".join(found)


def test_strings_are_found() -> None:
    """A docstring is not among them, and neither is a name."""
    code = '"""A docstring of it."""\nlog(f"{one} goes on", "name")\n'
    assert list(words.strings_of_module(ast.parse(code))) == [(2, " goes on")]


def test_messages_of_errors_are_found() -> None:
    """The parts of a format string and the hint are one text; other calls are not errors."""
    code = 'raise BadRequest(f"{one} had", hint="It goes on.")\nlog("anew")\nx = Conflict("whoever", field="y")\n'
    found = list(words.errors_of_module(ast.parse(code)))
    assert [(line, len(list(words.found_in(text)))) for line, text in found] == [(1, 1), (3, 1)]


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("Whoever asks waits.", "The client waits."),
        ("What happens behind a crash.", "The peer lags behind; it stands behind a proxy."),
        ("The task is no dead letter.", "The task is no longer due, and is not a dead letter."),
        ("A look goes on.", "The setting is ``goes on``."),
        ("Twice, of which\none counts.", "A `whoever` in code."),
    ],
)
def test_a_word_is_found_in_prose_only(bad: str, good: str) -> None:
    """The list finds a word of prose, and nothing in code or in a phrase that is allowed."""
    assert list(words.found_in(bad))
    assert not list(words.found_in(good))


def test_blocks_of_code_are_not_prose() -> None:
    """A page's blocks of code keep their words, and lines keep their numbers."""
    page = "Text::\n\n    whoever\n\nwhoever\n"
    assert [line for line, _ in words.found_in(words.prose_of_page(page))] == [5]
