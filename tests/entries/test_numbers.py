"""Numbers as text: valid ones, and texts that only look like numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq.core.texts import DIGITS_MAX, whole


@given(st.integers(0, 10**DIGITS_MAX - 1))
def test_what_is_written_is_read(number: int) -> None:
    """This includes leading zeros."""
    assert whole(str(number)) == whole(str(number).zfill(DIGITS_MAX)) == number


@pytest.mark.long
@given(st.text())
def test_any_other_text_is_no_number(text: str) -> None:
    """It is never an error."""
    ours = 0 < len(text) <= DIGITS_MAX and all(sign in "0123456789" for sign in text)
    assert (whole(text) is not None) == ours


@pytest.mark.parametrize("text", ["", "²", "１", "٣", "1_0", " 1", "+1", "-1", "1.0", "1e3", "9" * 19, "9" * 5_000])
def test_what_looks_like_a_number_is_none(text: str) -> None:
    """Python would read some of them, and raise an error for others."""
    assert whole(text) is None
