"""The whole tree follows the house rules; a failure names the rule, the file and the line."""

from __future__ import annotations

import pytest

from tests.tidy import rules


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_tree_follows(rule: rules.Rule) -> None:
    """Each rule holds in every file."""
    found = [f"{source.path}:{line}: {what}" for source in rules.sources() for line, what in rule(source)]
    assert not found, "\n" + "\n".join(found)


def test_no_modules_import_each_other() -> None:
    """There is no loop of imports, also none through types only or inside functions."""
    assert rules.loops(rules.edges(rules.sources())) == []


def test_packages_have_a_size_that_can_be_read() -> None:
    """No package has too many modules, and no small module has only one importer."""
    assert rules.crowded_packages(rules.sources()) + rules.fragments(rules.sources()) == []


def test_every_package_has_its_place() -> None:
    """Each package of the project is named in the order of imports."""
    known = {rules.package_of(source.module) for source in rules.sources() if source.product}
    assert known - {"onyxq"} == set(rules.MAY_IMPORT)
    product = [source for source in rules.sources() if source.product]
    facade = {source.path for source in product if rules.package_of(source.module) == "onyxq"}
    assert facade == {f"onyxq/{name}.py" for name in ("__init__", "__main__", "api", "app", "errors")}


def test_the_walk_sees_the_tree() -> None:
    """The rules are applied to files of every part that they name."""
    paths = {source.path for source in rules.sources()}
    assert {"onyxq/core/replica.py", "log_entries/__init__.py", "tests/tidy/rules.py"} <= paths
    assert sum(source.pure for source in rules.sources()) > 70


def test_every_sleep_that_is_allowed_has_a_reason() -> None:
    """The list of tests that may sleep stays tiny, and names files that exist."""
    paths = {source.path for source in rules.sources()}
    assert len(rules.SLEEPS_ALLOWED) <= 2
    assert all(path in paths and reason for path, reason in rules.SLEEPS_ALLOWED.items())
