"""The page of the HTTP interface, with forms to try its requests. It needs no content from other hosts.

Without scripts it is a page to read. It has the style of the dashboard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from onyxq.core.errors import by_code
from onyxq.interfaces.http.problems import title_of

_FILES = "/ui/static"
_HEAD = f"""<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="{_FILES}/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="{_FILES}/dashboard.css">
<script src="{_FILES}/theme.js"></script>
<script src="{_FILES}/docs.js" defer></script>
"""
_HEADER = f"""<a class="skip" href="#main">Skip to the content</a>
<header>
<a class="brand" href="/"><img src="{_FILES}/mark.svg" alt="" width="22" height="22">OnyxQ</a>
<span>HTTP interface</span>
<div class="tools">
<button type="button" id="theme" class="quiet" hidden>Theme: <span id="theme-name">system</span></button>
</div>
</header>
"""
EXAMPLE_DEPTH = 4
"""Deepest nesting of the example of a body."""


def page(title: str, body: str, *, links: Sequence[tuple[str, str]]) -> str:
    """Return a whole HTML page; ``body`` is HTML, ``links``: its parts, by anchor and name."""
    items = "".join(f'<li><a href="#{escape(anchor)}">{escape(name)}</a></li>' for anchor, name in links)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'{_HEAD}</head><body>{_HEADER}<div class="frame"><nav aria-label="Pages"><ul>{items}</ul></nav>'
        f'<main id="main" tabindex="-1" class="docs">{body}</main></div></body></html>\n'
    )


LONG_CHARS = 40
"""Most characters of a cell that is not wrapped."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str | None]], label: str) -> str:
    """Return an HTML table of texts, with long ones wrapped."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str | None) -> str:
    shown = escape(text) if text else "–"
    kind = ' class="long"' if len(shown) > LONG_CHARS else ""
    return f"<td{kind}>{shown}</td>"


# --- the documentation --------------------------------------------------------


def docs_page(document: Mapping[str, Any]) -> str:
    """Return an OpenAPI document as a page."""
    info, schemas = document["info"], document["components"]["schemas"]
    parts = [
        f'<h1>{escape(info["title"])} <span class="dim">{escape(info["version"])}</span></h1>',
        f'<p>{_prose(info["description"])}</p><p><a href="/openapi.json">openapi.json</a></p>',
        '<p class="filter" id="credential" hidden><label>Token for the requests that you try '
        '<input id="token" type="password" autocomplete="off" size="40"></label></p>',
    ]
    for tag in document["tags"]:
        name = title_of(tag["name"])
        parts.append(f'<h2 id="{_anchor(tag["name"])}">{escape(name)}</h2><p>{_prose(tag["description"])}</p>')
        for path, methods in document["paths"].items():
            parts += [
                _operation(path, method, op, schemas) for method, op in methods.items() if tag["name"] in op["tags"]
            ]
    parts.append('<h2 id="schemas">Schemas</h2>')
    for name, schema in sorted(schemas.items()):
        parts.append(
            f'<details id="schema-{escape(name)}"><summary>{escape(name)}</summary>{_schema(name, schema)}</details>'
        )
    parts.append(_problems())
    links = [(_anchor(tag["name"]), title_of(tag["name"])) for tag in document["tags"]]
    links += [("schemas", "Schemas"), ("problems", "Problems")]
    return page(f"{info['title']} HTTP interface", "".join(parts), links=links)


def _anchor(tag: str) -> str:
    return "tag-" + escape(tag).replace(" ", "-")


def _prose(text: str) -> str:
    """Return a text as HTML, with code between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _operation(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    name, summary = operation["operationId"], escape(operation["summary"])
    parts = [
        f'<details id="{escape(name)}"><summary><strong class="method">{method.upper()}</strong> '
        f'<code>{escape(path)}</code> <span class="dim">{summary}</span></summary>',
        f"<p>{summary}. {_prose(operation.get('description', ''))}</p>",
    ]
    parameters, bodies = operation.get("parameters", []), operation.get("requestBody", {}).get("content", {})
    if parameters:
        rows = [
            (item["name"], item["in"], _type(item["schema"]), _yes(item["required"]), item.get("description"))
            for item in parameters
        ]
        parts.append(table(("parameter", "in", "type", "required", "meaning"), rows, f"Parameters of {name}"))
    for media, content in bodies.items():
        parts.append(f"<p>Body (<code>{escape(media)}</code>): {_link(content['schema'])}</p>")
    answers = []
    for status, answer in operation["responses"].items():
        found = [_link(content["schema"]) for content in answer.get("content", {}).values()]
        answers.append(f"{escape(status)}{' ' + found[0] if found else ''}")
    parts.append(f"<p>Answers: {', '.join(answers)}</p>{_form(path, method, operation, schemas)}</details>")
    return "".join(parts)


def _form(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the form that sends a request; a script shows it."""
    name = escape(operation["operationId"])
    fields = [
        f'<label>{escape(item["name"])} <input name="{escape(item["name"])}" data-in="{escape(item["in"])}"'
        f"{' required' * bool(item['required'])}></label>"
        for item in operation.get("parameters", [])
    ]
    body = ""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        example = json.dumps(_example(content["schema"], schemas, EXAMPLE_DEPTH), indent=2)
        body = (
            f'<label class="wide">Body, {escape(media)} <textarea name="body" data-media="{escape(media)}" rows="6" '
            f'spellcheck="false">{escape(example if "json" in media else "")}</textarea></label>'
        )
        break
    return (
        f'<form class="try" data-method="{method.upper()}" data-path="{escape(path)}" aria-label="Try {name}" hidden>'
        f'<div class="filter">{"".join(fields)}{body}<button>Send</button></div>'
        f'<p role="status"></p><pre tabindex="0" aria-label="Answer of {name}" hidden></pre></form>'
    )


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> Any:
    """Return a value with the members that a schema requires."""
    if "$ref" in schema:
        schema = schemas[str(schema["$ref"]).rpartition("/")[2]]
    if "default" in schema or "enum" in schema:
        return schema.get("default", schema.get("enum", [None])[0])
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object" and depth:
        known, required = schema.get("properties", {}), schema.get("required", ())
        return {name: _example(known[name], schemas, depth - 1) for name in required if name in known}
    if kind == "array":
        items = schema.get("items")
        return [_example(items, schemas, depth - 1)] if isinstance(items, Mapping) and items and depth else []
    plain: Mapping[str, Any] = {"string": "", "integer": schema.get("minimum", 0), "number": 0, "boolean": False}
    return {} if kind == "object" else plain.get(kind)


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


def _schema(schema_name: str, schema: Mapping[str, Any]) -> str:
    if not schema.get("properties"):
        return f'<pre tabindex="0">{escape(json.dumps(schema, indent=2))}</pre>'
    required = schema.get("required", ())
    rows = [
        (name, _type(member), _yes(name in required), member.get("description"))
        for name, member in schema["properties"].items()
    ]
    return table(("member", "type", "required", "meaning"), rows, f"Members of {schema_name}")


def _problems() -> str:
    rows = "".join(
        f'<tr id="problem-{escape(code)}"><td><code>{escape(code)}</code></td><td>{cls.status}</td>'
        f'<td class="long">{escape((cls.__doc__ or "").strip())}</td><td class="long">{escape(cls.hint)}</td></tr>'
        for code, cls in sorted(by_code().items())
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("code", "status", "meaning", "hint"))
    return (
        '<h2 id="problems">Problems</h2><div class="scrolls" tabindex="0" role="region" aria-label="Problems">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
