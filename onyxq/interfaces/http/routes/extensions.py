"""Endpoints for extensions: submitting their entries and reading their states."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.interfaces.http.schemas import ref
from onyxq.interfaces.http.shapes import Base64, Field, Integer, Invalid, Object, Schema, kind_of
from onyxq.interfaces.http.values import answer

_ENCODED = "_base64"

SEEN_QUERY = Object(
    "SeenQuery",
    {"seen": Field(Integer(0), doc="Answer with a state that is not older than this position of the log.")},
)


class Arguments(Object):
    """An entry's arguments by name; bytes come as base64 under ``<name>_base64``."""

    def check(self, value: Any) -> dict[str, Any]:
        """The arguments; their types are checked by the node, which knows the entry."""
        if type(value) is not dict:
            raise Invalid(f"must be an object, not {kind_of(value)}")
        out: dict[str, Any] = {}
        for name, item in value.items():
            try:
                plain = name.removesuffix(_ENCODED)
                if plain in out:
                    raise Invalid(f"and {plain} exclude each other")
                out[plain] = Base64().check(item) if plain != name else item
            except Invalid as error:
                error.within(name)
                raise
        return out

    def definition(self) -> Schema:
        """The component's JSON schema."""
        return {"type": "object", "additionalProperties": True}


async def post_entry(call: Call) -> Response:
    """Append an entry of an extension."""
    return answer(await call.ask("submit", entry=call.path["entry"], args=dict(call.body)))


async def get_extension(call: Call) -> Response:
    """The state of an extension."""
    seen = call.query.get("seen")
    wanted = {} if seen is None else {"seen": seen}
    return answer(await call.ask("extension", name=call.path["extension"], **wanted))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/entries/{entry}",
        name="submit_entry",
        tag="extensions",
        summary="Append an entry of an extension to the log",
        doc="The answer tells what became of it: `applied`, or why nothing changed.",
        handle=post_entry,
        role="produce",
        body=Arguments("EntryArguments", {}),
        large=True,
        body_required=False,
        answer=ref("Submitted"),
        errors=(403, 404, 409),
    ),
    Endpoint(
        method="GET",
        path="/v1/extensions/{extension}",
        name="get_extension",
        tag="extensions",
        summary="The state of an extension",
        handle=get_extension,
        query=SEEN_QUERY,
        answer=ref("ExtensionState"),
        errors=(404,),
    ),
)
