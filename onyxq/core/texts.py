"""Texts from outside: numbers in them, and text that is safe to show; and numbers as text.  Pure."""

from __future__ import annotations

DIGITS_MAX = 18
"""Most digits of a number: every number of this many digits is below 2**63."""


def whole(text: str) -> int | None:
    """Return the number that 1 to 18 ASCII digits write; None for any other text.

    `str.isdigit` is also true for ``²`` and for the digits of every script, which `int` refuses or accepts.
    """
    return int(text) if len(text) <= DIGITS_MAX and text.isascii() and text.isdigit() else None


def without_middle(text: str, bytes_max: int) -> str:
    """Return a text that has at most ``bytes_max`` bytes of UTF-8: of a longer one, its beginning and its end.

    Halves of surrogate pairs, which cannot be encoded, are escaped.
    """
    data = text.encode(errors="backslashreplace")
    if len(data) <= bytes_max:
        return data.decode()
    note = f"\n... the middle of {len(data)} bytes is left out ...\n"
    room = bytes_max - len(note)
    beginning, end = data[: room // 4], data[len(data) - room + room // 4 :]
    return beginning.decode(errors="ignore") + note + end.decode(errors="ignore")


def visible(text: str, *, keep: str = "") -> str:
    """Return a text with escapes for characters that control a terminal or reorder text; ``keep``: not escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else ascii(sign)[1:-1] for sign in text)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 task``, ``12 tasks``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def attempt_of(number: int, most: int | None) -> str:
    """Return ``2 of 6`` for the second of at most six attempts; ``most`` None: no limit, and only ``2``."""
    return f"{number} of {most}" if most is not None else str(number)
