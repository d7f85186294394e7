"""Reference pages that the code itself prints while the site is made, so that they are never out of date.

Each function returns reStructuredText; each is a directive of that name, ``.. onyxq-metrics::`` for example.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from onyxq import api
from onyxq.core.errors import OnyxqError, by_code
from onyxq.core.limits import Member, members
from onyxq.core.queue_settings import DEFAULTS
from onyxq.core.queue_settings import SETTINGS as QUEUE_SETTINGS
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.parser import Command
from onyxq.interfaces.http.app import ENDPOINTS
from onyxq.interfaces.http.endpoint import Endpoint
from onyxq.interfaces.http.openapi import openapi
from onyxq.operations.table import problems
from onyxq.operations.table.everything import GROUPS
from onyxq.operations.table.operation import Operation as OperationRow
from onyxq.operations.table.operation import plain as plain_values
from onyxq.operations.table.queue import shown_settings
from onyxq.system import metrics
from onyxq.system.settings import SETTINGS


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table with a line of heads; a cell is a text of its own."""
    out = [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        for place, cell in enumerate(row):
            first, *rest = (cell or "\\ ").splitlines()
            out.append(f"   {'*' if place == 0 else ' '} - {first}")
            out.extend(f"       {line}".rstrip() for line in rest)
    return [*out, ""]


def section(title: str, line: str = "-") -> list[str]:
    """Return a heading."""
    return [title, line * len(title), ""]


def literal(text: str) -> str:
    """Return text as code, or nothing for an empty text."""
    return f"``{text}``" if text else ""


def plain(text: str) -> str:
    """Return text without markup; parts between backticks are code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = [text.replace("`", "'")]
    escaped = (
        re.sub(r"([\\*|_])", r"\\\1", part) if place % 2 == 0 else literal(part) for place, part in enumerate(parts)
    )
    return "".join(escaped)


# --- settings, commands -------------------------------------------------------


def settings_page() -> list[str]:
    """Return every setting of `onyxq.system.settings`."""
    kinds = {str: "text", int: "number", bool: "on or off"}
    return table(
        ("setting", "flag", "environment", "kind", "default", "meaning"),
        [
            (
                literal(name),
                literal("--" + name.replace("_", "-")),
                literal(f"ONYXQ_{name.upper()}"),
                kinds[known.kind],
                literal("" if known.default is None else str(known.default)),
                plain(known.about),
            )
            for name, known in SETTINGS.items()
        ],
    )


def commands_page() -> list[str]:
    """Return every command of the command line with its options."""
    out: list[str] = []
    for noun in ("", *NOUNS):
        found = [command for command in COMMANDS if command.name.rpartition(" ")[0] == noun]
        if found:
            out += section(f"onyxq {noun}".strip(), "-")
            out += [f"{NOUNS[noun].capitalize()}.", ""] if noun else []
            for command in found:
                out += _command(command)
    return out


def _command(command: Command) -> list[str]:
    out = section(f"onyxq {command.name}", "~")
    out += [plain(command.about[0].upper() + command.about[1:]) + ".", ""]
    for flags, details in command.options():
        if details.get("help") != argparse.SUPPRESS:
            out += [_usage(flags, details), f"   {plain(details.get('help') or 'needed')}", ""]
    common = "``--connect``, ``--token``, ``--json``, ``--config``" if command.talks else "``--json``, ``--config``"
    return [*out, f"Also {common}. For example::", "", f"    {command.example}", ""]


def _usage(flags: tuple[str, ...], details: dict[str, Any]) -> str:
    if not flags[0].startswith("-"):
        return literal(details.get("metavar") or flags[0].upper())
    valued = details.get("action") is None
    value = details.get("metavar") or flags[-1].lstrip("-").replace("-", "_").upper()
    return ", ".join(literal(f"{flag} {value}" if valued else flag) for flag in flags)


# --- operations ---------------------------------------------------------------


def queue_settings_page() -> list[str]:
    """Return every setting of a queue."""
    shown = plain_values(shown_settings(DEFAULTS))
    return table(
        ("setting", "default", "meaning"),
        [(literal(name), literal(_default(shown[name])), plain(one.about)) for name, one in QUEUE_SETTINGS.items()],
    )


def operations_page() -> list[str]:
    """Return every operation of the table, as a client sends it to a peer."""
    out: list[str] = []
    for title, group in GROUPS.items():
        out += section(title)
        for operation in group:
            out += _row(operation)
    return out


def _row(operation: OperationRow[Any, Any]) -> list[str]:
    out = section(operation.name, "~")
    out += [plain(operation.summary) + ".", "", plain(operation.description), ""]
    rows = [
        (literal(name), _wire_kind(one), _needed(one.required), literal(_default(one.default)), plain(one.about))
        for name, one in operation.members.items()
    ]
    if rows:
        out += table(("argument", "kind", "needed", "default", "meaning"), rows)
    answers = [literal(name) for name in members(operation.result)]
    out += [
        f":Role: {' or '.join(operation.access.roles) or 'as the arguments need'}",
        f":Runs on: {operation.place.value}",
    ]
    out += [f":Answers: {', '.join(answers) or 'nothing'}", ""]
    if operation.example:
        out += ["For example::", "", f"    {dict(operation.example)!r}", ""]
    return out


def _wire_kind(member: Member) -> str:
    return problems.expected(member.node) + (" or nil" if member.nullable else "")


def _default(value: Any) -> str:
    if value in (None, "", b""):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- HTTP ---------------------------------------------------------------------


def http_page() -> list[str]:
    """Return every operation of the OpenAPI document."""
    document = openapi(ENDPOINTS, with_tokens=True)
    out: list[str] = []
    for tag in document["tags"]:
        out += [*section(tag["name"].capitalize()), plain(tag["description"]), ""]
        for endpoint in ENDPOINTS:
            if endpoint.tag == tag["name"] and not endpoint.page:
                operation = document["paths"][endpoint.path][endpoint.method.lower()]
                out += _operation(endpoint, operation, document["components"]["schemas"])
    return out


def _operation(endpoint: Endpoint, operation: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    out = section(f"{endpoint.method} {endpoint.path}", "~")
    out += [plain(operation["summary"]), "", plain(operation.get("description", "")), ""]
    rows = [
        (
            literal(one["name"]),
            one["in"],
            _kind(one["schema"]),
            _needed(one["required"]),
            plain(one.get("description", "")),
        )
        for one in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    if body:
        rows += _members("body", body["content"]["application/json"]["schema"], schemas)
    if rows:
        out += table(("field", "in", "kind", "needed", "meaning"), rows)
    answers = [f"{status}" for status in operation["responses"] if status != "default"]
    out += [f":Role: {' or '.join(endpoint.roles) or 'none is asked for'}", f":Statuses: {', '.join(answers)}"]
    answer = endpoint.answer or {}
    return [*out, *([f":Answer: {_kind(answer)}"] if answer else []), ""]


def _members(place: str, schema: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, ...]]:
    shape = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    needed = shape.get("required", ())
    return [
        (literal(name), place, _kind(one), _needed(name in needed), plain(one.get("description", "")))
        for name, one in shape.get("properties", {}).items()
    ]


def _needed(needed: bool) -> str:
    return "yes" if needed else ""


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[several])))
    if "enum" in schema:
        return "one of " + ", ".join(literal(str(one)) for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    words = " or ".join(kind) if isinstance(kind, list) else kind
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{words} {low} … {high}" if low is not None and high is not None else str(words)


def schemas_page() -> list[str]:
    """Return the named types of the OpenAPI document."""
    out: list[str] = []
    schemas = openapi(ENDPOINTS, with_tokens=True)["components"]["schemas"]
    for name, schema in schemas.items():
        rows = [row[:1] + row[2:] for row in _members("", schema, schemas)]
        out += [*section(name, "~"), plain(schema.get("description", "")), ""]
        out += table(("member", "kind", "always there", "meaning"), rows) if rows else [_kind(schema), ""]
    return out


# --- metrics, errors, Python --------------------------------------------------


def metrics_page() -> list[str]:
    """Return every metric of `onyxq.system.metrics`."""
    known = [one for one in vars(metrics.Metrics()).values() if hasattr(one, "render")]
    return table(
        ("metric", "type", "labels", "meaning"),
        [
            (
                literal(one.name),
                type(one).__name__.lower(),
                ", ".join(literal(label) for label in getattr(one, "labels", ())),
                plain(one.doc),
            )
            for one in known
        ],
    )


def errors_page() -> list[str]:
    """Return every error of `onyxq.errors`."""
    return table(
        ("code", "class", "HTTP", "exit", "meaning, and what to do"),
        [
            (
                literal(code),
                literal(kind.__name__),
                str(kind.status),
                str(kind.exit_code),
                inspect.cleandoc(kind.__doc__ or "") + (f"\n\n*{plain(kind.hint)}*" if kind.hint else ""),
            )
            for code, kind in sorted(by_code().items())
            if kind.__module__ == OnyxqError.__module__
        ],
    )


def python_page() -> list[str]:
    """Return all public names, those that most programs need first."""
    out: list[str] = []
    told = {id(api), *(id(getattr(api, name)) for name in api.__all__)}
    for module in PUBLIC:
        out += section(module)
        names = importlib.import_module(module).__all__
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            if id(thing) not in told and not name.startswith("_"):
                told.add(id(thing))
                out += [f".. {_autodoc(thing)}:: {module}.{name}", *_members_shown(thing), ""]
    return [*out, *section("onyxq.api"), ".. automodule:: onyxq.api", "   :members:", ""]


PUBLIC = (
    "onyxq",
    "onyxq.app",
    "onyxq.client",
    "onyxq.worker",
    "onyxq.outbox",
    "onyxq.outbox.psycopg",
    "onyxq.outbox.sqlalchemy",
    "onyxq.outbox.django",
    "onyxq.integrations.fastapi",
    "onyxq.integrations.flask",
    "onyxq.integrations.django",
    "onyxq.testing",
)


def _autodoc(thing: Any) -> str:
    if isinstance(thing, type):
        return "autoexception" if issubclass(thing, BaseException) else "autoclass"
    return "autofunction" if callable(thing) else "autodata"


def _members_shown(thing: Any) -> list[str]:
    if not isinstance(thing, type):
        return []
    inherited = "   :inherited-members: bytes" if issubclass(thing, bytes) else "   :inherited-members:"
    return ["   :members:", *([] if issubclass(thing, BaseException) else [inherited])]


PAGES: dict[str, Callable[[], list[str]]] = {
    "onyxq-settings": settings_page,
    "onyxq-commands": commands_page,
    "onyxq-queue-settings": queue_settings_page,
    "onyxq-operations": operations_page,
    "onyxq-http": http_page,
    "onyxq-schemas": schemas_page,
    "onyxq-metrics": metrics_page,
    "onyxq-errors": errors_page,
    "onyxq-python": python_page,
}


class Printed(SphinxDirective):
    """Inserts the text of the function that the directive's name selects."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes in the directive's place."""
        text = "\n".join(PAGES[self.name]())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def own_signature(_app: Sphinx, _what: str, _name: str, thing: Any, *_: Any) -> None:
    """Show a call that lists its shared options with that signature, not with its overloads."""
    if hasattr(thing, "__signature__"):
        analyzer = ModuleAnalyzer.for_module(thing.__module__)
        analyzer.analyze()
        analyzer.overloads.pop(thing.__qualname__, None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    for name in PAGES:
        app.add_directive(name, Printed)
    app.connect("autodoc-skip-member", own_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
