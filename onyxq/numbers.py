"""Numbers as text, from outside.  Pure.

`str.isdigit` is true of ``²`` and of digits of every script, which `int` refuses or reads; and of so
many digits that `int` gives up.
"""

from __future__ import annotations

DIGITS_MAX = 18
"""Whatever has so many is below 2**63."""


def whole(text: str) -> int | None:
    """The number that 1 to 18 ASCII digits write; None for any other text."""
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdigit() else None
