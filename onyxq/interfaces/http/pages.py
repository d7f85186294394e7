"""Pages for people, without scripts and without content from other hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onyxq.core.errors import BY_CODE, OnyxqError
from onyxq.interfaces.http.problems import title_of

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
body.wide { max-width: 92rem; font-size: 14px; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem .8rem; border: 1px solid #8884; border-radius: 4px; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #8883; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; } summary { cursor: pointer; }
.scrolls { overflow-x: auto; }
h2 { margin-top: 2.2rem; } h3 { margin: 1.8rem 0 .3rem; }
.method { font-weight: 700; } .dim { opacity: .7; }
"""


def page(title: str, body: str, *, kind: str = "") -> str:
    """Return a whole HTML page; ``body`` is HTML, ``kind`` a class of the style."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{_STYLE}</style></head><body class="{kind}">{body}</body></html>\n'
    )


NUMBER, LONG = "number", "long"
"""Classes of cells."""
LONG_CHARS = 40


class Html(str):
    """A cell of a table that is already HTML."""


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return an HTML table of plain values, with numbers to the right and long texts wrapped."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(heads)
    numbers = [_is_numeric(column) for column in columns]
    head = "".join(
        f"<th{_class(NUMBER * number)}>{escape(text)}</th>" for text, number in zip(heads, numbers, strict=True)
    )
    lines = ("".join(map(_cell, row, numbers)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div class=scrolls><table><tr>{head}</tr>{body}</table></div>"


def _is_numeric(column: Sequence[Any]) -> bool:
    known = [cell for cell in column if cell not in (None, "")]
    return bool(known) and all(type(cell) in (int, float) for cell in known)


def _cell(cell: Any, number: bool) -> str:
    shown = _shown(cell)
    kind = NUMBER if number else LONG * (isinstance(cell, Html) or len(shown) > LONG_CHARS)
    return f"<td{_class(kind)}>{shown}</td>"


def _class(kind: str) -> str:
    return f" class={kind}" if kind else ""


def _shown(cell: Any) -> str:
    if isinstance(cell, Html):
        return cell
    if cell is None or cell == "":
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, (list, tuple)):
        return escape(", ".join(map(str, cell))) or "–"
    return escape(str(cell))


# --- the documentation --------------------------------------------------------


def docs_page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as a page."""
    info = document["info"]
    parts = [
        f"<h1>{escape(info['title'])} <span class=dim>{escape(info['version'])}</span></h1>",
        f"<p>{escape(info['description'])}</p>",
        '<p><a href="openapi.json">openapi.json</a> · <a href="#schemas">schemas</a> · '
        '<a href="#problems">problems</a></p>',
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(title_of(tag['name']))}</h2><p>{escape(tag['description'])}</p>")
        for path, methods in document["paths"].items():
            parts += [_operation(path, method, op) for method, op in methods.items() if tag["name"] in op["tags"]]
    parts.append('<h2 id="schemas">Schemas</h2>')
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(f'<h3 id="schema-{escape(name)}">{escape(name)}</h3>{_schema(schema)}')
    parts.append(_problems())
    return page(f"{info['title']} HTTP interface", "".join(parts))


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    title = f"<span class=method>{method.upper()}</span> <code>{escape(path)}</code>"
    parts = [
        f'<h3 id="{escape(operation["operationId"])}">{title}</h3><p>{escape(operation["summary"])}.',
        f" {escape(operation.get('description', ''))}</p>",
    ]
    if operation.get("parameters"):
        rows = [
            (item["name"], item["in"], _type(item["schema"]), _yes(item["required"]), item.get("description"))
            for item in operation["parameters"]
        ]
        parts.append(table(("parameter", "in", "type", "required", ""), rows))
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body (<code>{escape(media)}</code>): {_link(content['schema'])}</p>")
    answers = []
    for status, answer in operation["responses"].items():
        schemas = [_link(content["schema"]) for content in answer.get("content", {}).values()]
        answers.append(f"{escape(status)}{' ' + schemas[0] if schemas else ''}")
    parts.append(f"<p>Answers: {', '.join(answers)}</p>")
    return "".join(parts)


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _link(schema: Mapping[str, Any]) -> str:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f'<a href="#schema-{escape(name)}">{escape(name)}</a>' if name else escape(_type(schema))


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "items" in schema:
        return f"array of {_type(schema['items'])}"
    kind = schema.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    for name, sign in (("minimum", "≥"), ("maximum", "≤"), ("default", "default")):
        if name in schema:
            text += f", {sign} {schema[name]}"
    return text + (f": {', '.join(map(str, schema['enum']))}" if "enum" in schema else "")


def _schema(schema: Mapping[str, Any]) -> str:
    if not schema.get("properties"):
        return f"<pre>{escape(json.dumps(schema, indent=2))}</pre>"
    required = schema.get("required", ())
    rows = [
        (name, _type(member), _yes(name in required), member.get("description"))
        for name, member in schema["properties"].items()
    ]
    return table(("member", "type", "required", ""), rows)


def _problems() -> str:
    rows = "".join(
        f'<tr id="problem-{escape(code)}"><td><code>{escape(code)}</code></td><td>{cls.status}</td>'
        f"<td>{escape((cls.__doc__ or '').strip())}</td><td>{escape(cls.hint)}</td></tr>"
        for code, cls in sorted({**BY_CODE, **_later(OnyxqError)}.items())
    )
    heads = "<tr><th>code</th><th>status</th><th>meaning</th><th>hint</th></tr>"
    return f'<h2 id="problems">Problems</h2><table>{heads}{rows}</table>'


def _later(cls: type[OnyxqError]) -> dict[str, type[OnyxqError]]:
    """Return all errors by code, with those that other modules define."""
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found = {**_later(child), **found}
    return found
