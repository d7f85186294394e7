"""Values of all types that segments hold, made by Hypothesis."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import strategies as st

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OFFSETS = st.integers(-1_439, 1_439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))


def zones() -> st.SearchStrategy[Any]:
    """Offsets, UTC and zones by name."""
    return OFFSETS | st.just(datetime.UTC) | st.timezones()


def scalars() -> st.SearchStrategy[Any]:
    """Values without parts."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        TEXTS,
        st.binary(max_size=8),
        st.datetimes(),
        st.datetimes(timezones=OFFSETS | st.just(datetime.UTC)),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.decimals(),
        st.uuids(),
    )


def keys() -> st.SearchStrategy[Any]:
    """Keys of maps: names mostly."""
    return TEXTS | TEXTS | st.integers() | st.dates() | st.booleans() | st.tuples(st.integers(), TEXTS)


def values() -> st.SearchStrategy[Any]:
    """Values with parts, of all types that segments hold."""
    whole = scalars() | st.datetimes(timezones=zones(), allow_imaginary=False)
    return st.recursive(
        whole,
        lambda inside: st.one_of(
            st.lists(inside, max_size=4),
            st.dictionaries(TEXTS, inside, max_size=4),
            st.dictionaries(keys(), inside, max_size=3),
            st.lists(inside, max_size=3).map(tuple),
            st.sets(st.integers() | TEXTS | st.dates(), max_size=3),
            st.frozensets(st.integers() | st.uuids(), max_size=3),
        ),
        max_leaves=12,
    )
