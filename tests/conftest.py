"""What all tests share: a clean environment and reproducible generated examples."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the ``ONYXQ_*`` settings of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("ONYXQ_")]:
        monkeypatch.delenv(name)
