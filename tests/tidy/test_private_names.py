"""Private names of other packages are used in one place each, and the admitted versions have them."""

from __future__ import annotations

import ast
import configparser
import importlib
import inspect
from importlib import metadata
from typing import Any

import pytest
from attrs import frozen
from packaging.requirements import Requirement

from tests.tidy.rules import ROOT, Source, parse, sources


@frozen
class Private:
    """The private names that one file uses of a package, and the versions that have them."""

    package: str
    versions: str
    """The package's line in setup.cfg."""
    file: str
    names: dict[str, str]
    """``module:class``, or a module -> names, separated by spaces."""


PRIVATE = (
    Private(
        "kazoo",
        ">=2.11,<2.12",
        "onyxq/log/kazoo_connection.py",
        {
            "kazoo.client:KazooClient": "_call _conn_retry _connection _live _pending _queue _safe_close "
            "_session_callback _session_id _session_passwd _session_timeout _state _stopped",
            "kazoo.protocol.connection:ConnectionHandler": "_connect _connect_attempt _invoke _read _read_response "
            "_read_sock _read_socket _read_watch_event _send_request _socket _socket_error_handling _submit _write "
            "_write_sock _xid",
            "kazoo.handlers.threading:AsyncResult": "_callbacks _do_callbacks",
        },
    ),
    Private(
        "hypercorn",
        ">=0.17,<0.19",
        "onyxq/interfaces/http/connection.py",
        {
            "hypercorn.trio.tcp_server:TCPServer": "_read_data idle_task protocol",
            "hypercorn.protocol.h11:H11Protocol": "_check_protocol _send_error_response",
        },
    ),
    Private(
        "trio",
        ">=0.25,<0.36",
        "simulation/world/scheduling.py",
        {
            "trio": "_core _threads _timeouts",
            "trio._core": "_run",
            "trio._core._run": "Deadlines GLOBAL_RUN_CONTEXT _ALLOW_DETERMINISTIC_SCHEDULING _active _cancel_status "
            "_heap _r",
            "trio._threads": "start_thread_soon",
            "trio._timeouts": "sleep_until",
            "trio._util:NoPublicConstructor": "_create",
        },
    ),
    Private(
        "pyspark",
        ">=4.2.1,<4.4",
        "onyxq/spark/java.py",
        {
            "pyspark.core.context:SparkContext": "_gateway _jsc",
            "pyspark.sql.session:SparkSession": "_jsparkSession _jvm",
            "pyspark.sql.classic.dataframe:DataFrame": "_jdf",
            "pyspark.sql.streaming.readwriter:DataStreamWriter": "_df",
            "pyspark.sql.streaming.query:StreamingQuery": "_jsq",
            "pyspark.java_gateway": "proc",
        },
    ),
)
ALSO = {"_actions": "onyxq/interfaces/cli/parser.py"}
"""Private names of Python's own library, and their homes."""
DOCUMENTED = {"_asdict", "_field_defaults", "_exit", "_current_frames"}
"""Public names of Python's own library that look private."""


def stored(tree: ast.AST) -> set[str]:
    """Return the attributes that some code assigns."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def names_in(owner: str, package: str) -> set[str]:
    """Return the names that a module or a class has, those that it assigns to objects included."""
    module, _, name = owner.partition(":")
    found: Any = importlib.import_module(module)
    if not name:
        return set(dir(found)) | stored(ast.parse(inspect.getsource(found)))
    classes = [one for one in inspect.getmro(getattr(found, name)) if one.__module__.partition(".")[0] == package]
    return set(dir(getattr(found, name))).union(
        *(stored(ast.parse(inspect.cleandoc(f"\n{inspect.getsource(one)}"))) for one in classes)
    )


def defined(every: list[Source]) -> set[str]:
    """Return the names that the project itself defines: functions, classes, variables, parameters, attributes."""
    found: set[str] = set()
    for source in every:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    found.add(node.attr)
    return found


def strays(every: list[Source]) -> list[str]:
    """Return the uses of other packages' private names outside their homes."""
    own = defined(every) | DOCUMENTED
    homes = {one.file for one in PRIVATE}
    packages = {one.package for one in PRIVATE}
    return [
        f"{source.path}:{node.lineno}: {ast.unparse(node)}"
        for source in every
        for node in ast.walk(source.tree)
        if source.path not in homes and isinstance(node, ast.Attribute)
        if node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in own or ast.unparse(node.value) in packages
        if ALSO.get(node.attr) != source.path
    ]


@pytest.mark.parametrize("private", PRIVATE, ids=lambda private: private.package)
def test_the_installed_version_has_the_private_names_that_are_used(private: Private) -> None:
    """A version without one of them is reported by name, before anything else fails."""
    pytest.importorskip(private.package)
    version = metadata.version(private.package)
    gone = [
        f"{private.package} {version} has no {name} in {owner}, which {private.file} uses: "
        f"change that file, or exclude the version in setup.cfg and here ({private.versions})"
        for owner, names in private.names.items()
        for name in sorted(set(names.split()) - names_in(owner, private.package))
    ]
    assert not gone, "\n".join(gone)


@pytest.mark.parametrize("private", PRIVATE, ids=lambda private: private.package)
def test_the_project_admits_only_versions_that_have_the_private_names(private: Private) -> None:
    """The range in setup.cfg has an upper end, is the one that this file names, and holds the installed version."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["install_requires"] + setup["options.extras_require"]["spark"]
    (wanted,) = [one for one in map(Requirement, lines.split("\n")[1:]) if one.name == private.package]
    assert wanted.specifier == Requirement(f"any{private.versions}").specifier
    assert any(one.operator == "<" for one in wanted.specifier)
    assert metadata.version(private.package) in wanted.specifier


def test_private_names_of_others_are_used_in_one_place_each() -> None:
    """Everywhere else the product uses what is public, or asks that place."""
    assert strays([source for source in sources() if source.product]) == []


def test_a_private_name_outside_its_place_is_found() -> None:
    """Also one whose package is known; a name of the project's own is not one."""
    text = "session._jvm.java\nsession._mine\nself._mine = 1\ntrio._mine\n"
    found = strays([parse("onyxq/spark/pools.py", text)])
    assert sorted(found) == ["onyxq/spark/pools.py:1: session._jvm", "onyxq/spark/pools.py:4: trio._mine"]


def test_a_name_that_a_version_lost_is_found() -> None:
    """Among those that a class has, inherits, or assigns to its objects."""
    names = names_in("kazoo.client:KazooClient", "kazoo")
    assert {"start", "_stopped", "_pending"} <= names
    assert "_never_there" not in names
