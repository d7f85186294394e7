"""Estimates how much memory a message takes once decoded, before it is decoded.

One byte of MessagePack may be an empty map, which takes over 64 bytes: 20 MiB of them would take 1.5 GB.
"""

from __future__ import annotations

from onyxq.core.errors import TooLarge

DECODED_BYTES_MAX = 128 * 1024 * 1024
"""Most estimated bytes of one decoded message."""
LOOKED_AT_BYTES = 16 * 1024
"""Size in bytes up to which a message is not examined: each of its bytes counts `SHORT_FACTOR` times."""
SHORT_FACTOR = 16
VALUE_BYTES = 64
"""Estimated bytes of a number or text, besides its content. It also bounds how many values are counted."""
CONTAINER_BYTES = 256
"""Estimated bytes of a list or map, besides its values."""


def _sizes() -> list[int]:
    """Return the bytes of a value by its first byte, its values aside; 0: its length follows."""
    sizes = [1] * 256
    for kind in range(0xA0, 0xC0):
        sizes[kind] = 1 + kind - 0xA0
    sizes[0xCA:0xE0] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9, 3, 4, 6, 10, 18, 0, 0, 0, 3, 5, 3, 5]
    for kind in _LENGTHS:
        sizes[kind] = 0
    return sizes


_LENGTHS = {
    0xC4: (1, 2),
    0xC5: (2, 3),
    0xC6: (4, 5),
    0xC7: (1, 3),
    0xC8: (2, 4),
    0xC9: (4, 6),
    0xD9: (1, 2),
    0xDA: (2, 3),
    0xDB: (4, 5),
}
"""First byte of a value with a length -> bytes of the length, and bytes before the content."""
_SIZES = _sizes()
_WEIGHTS = [CONTAINER_BYTES if 0x80 <= kind < 0xA0 or 0xDC <= kind < 0xE0 else VALUE_BYTES for kind in range(256)]


def decoded_bytes(frame: memoryview, limit: int = DECODED_BYTES_MAX) -> int:
    """Estimate the bytes of a decoded MessagePack value; raises `TooLarge` above ``limit``.

    Malformed values are left to the decoder.
    """
    place, end, total = 0, len(frame), len(frame)
    if end <= LOOKED_AT_BYTES:
        return end * SHORT_FACTOR
    while place < end:
        kind = frame[place]
        total += _WEIGHTS[kind]
        if total > limit:
            raise TooLarge("a message has too many values", hint="Send fewer of them at a time.")
        size = _SIZES[kind]
        if not size:
            digits, before = _LENGTHS[kind]
            size = before + int.from_bytes(frame[place + 1 : place + 1 + digits], "big")
        place += size
    return total
