"""The colours of the pages, from their variables: text is readable on its background in light and dark."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = files("onyxq.interfaces.dashboard").joinpath("static/dashboard.css").read_text("utf-8")
BLOCK = re.compile(r"\{([^{}]*--ground:[^{}]*)\}")
VARIABLE = re.compile(r"--([a-z0-9-]+):\s*#([0-9a-f]{6})")
PAIRS = (
    *((text, ground) for text in ("text", "dim", "link", "bad") for ground in ("ground", "raised")),
    *((f"series-{number}", "ground") for number in range(1, 5)),
    ("on-accent", "accent"),
    ("good", "good-ground"),
    ("warn", "warn-ground"),
    ("bad", "bad-ground"),
)
"""Pairs of text colour and background colour."""
READABLE = 4.5
"""Lowest contrast for text by WCAG (AA)."""

LIGHT, BY_SYSTEM, DARK = (dict(VARIABLE.findall(block)) for block in BLOCK.findall(CSS))


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_is_right() -> None:
    """Black on white, and one of WCAG's own examples, have the known ratios."""
    assert contrast("000000", "ffffff") == pytest.approx(21)
    assert contrast("777777", "ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("text", "ground"), PAIRS)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(theme: dict[str, str], text: str, ground: str) -> None:
    """Every pair of the style has enough contrast."""
    assert contrast(theme[text], theme[ground]) >= READABLE


def test_the_two_ways_to_the_dark_are_one() -> None:
    """The system's setting and the switch give the same colours; dark has every colour that light has."""
    assert BY_SYSTEM == DARK and DARK.keys() == LIGHT.keys()
