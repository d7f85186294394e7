"""What a class with annotated fields declares: its members with types, bounds, defaults and meaning.  Pure.

Arguments and results of operations and the settings of queues are such classes (`msgspec` structs and attrs
classes).  Everything that follows from a declaration, such as checks, schemas and help, reads it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from attrs import frozen
from msgspec import inspect

Node = inspect.Type
"""A type as `msgspec.inspect` describes it."""


@frozen
class Member:
    """A field of a class."""

    name: str
    node: Node
    """Its type, without ``None`` and without marks."""
    required: bool
    default: Any
    """None also if there is no default."""
    nullable: bool
    about: str
    """Its description; empty if it has none."""
    marks: Mapping[str, Any]
    """The ``extra`` of its annotations."""


def bare(node: Node) -> tuple[Node, bool, str, dict[str, Any]]:
    """Return a type without ``None`` and annotations, whether ``None`` fits, the description and the marks."""
    about, marks, nullable = "", dict[str, Any](), False
    while True:
        if isinstance(node, inspect.Metadata):
            about = about or (node.extra_json_schema or {}).get("description", "")
            marks = {**(node.extra or {}), **marks}
            node = node.type
        elif isinstance(node, inspect.UnionType) and node.includes_none:
            nullable = True
            others = tuple(one for one in node.types if not isinstance(one, inspect.NoneType))
            node = others[0] if len(others) == 1 else inspect.UnionType(others)
        else:
            return node, nullable, about, marks


@cache
def members(kind: Any) -> Mapping[str, Member]:
    """Return the members of a class by name, in their order."""
    node = inspect.type_info(kind)
    assert isinstance(node, (inspect.StructType, inspect.DataclassType))
    return MappingProxyType({one.encode_name: _member(one) for one in node.fields})


def _member(field: inspect.Field) -> Member:
    node, nullable, about, marks = bare(field.type)
    default = field.default
    if default is msgspec.NODEFAULT:
        default = None if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return Member(field.encode_name, node, field.required, default, nullable, about, marks)
