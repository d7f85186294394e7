"""Texts that strangers wrote, made safe to show."""

from __future__ import annotations


def visible(text: str, *, keep: str = "") -> str:
    """Return a text with escapes for signs that a terminal obeys and signs that reorder text; ``keep``: no escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else ascii(sign)[1:-1] for sign in text)
