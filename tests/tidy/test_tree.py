"""The whole tree follows the house rules; a failure says who broke which, and where."""

from __future__ import annotations

import pytest

from tests.tidy import rules

SOURCES = rules.sources()


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_tree_follows(rule: rules.Rule) -> None:
    """Each rule holds in every file."""
    found = [f"{source.path}:{line}: {what}" for source in SOURCES for line, what in rule(source)]
    assert not found, "\n" + "\n".join(found)


def test_the_walk_sees_the_tree() -> None:
    """The rules are applied to files of every part that they speak of."""
    paths = {source.path for source in SOURCES}
    assert {"onyxq/replica.py", "log_entries/__init__.py", "tests/tidy/rules.py"} <= paths
    assert sum(source.pure for source in SOURCES) >= len(rules.PURE) - 1


def test_every_sleep_that_is_allowed_has_a_reason() -> None:
    """The list of tests that may sleep stays tiny, and names files that exist."""
    paths = {source.path for source in SOURCES}
    assert len(rules.SLEEPS_ALLOWED) <= 2
    assert all(path in paths and reason for path, reason in rules.SLEEPS_ALLOWED.items())
