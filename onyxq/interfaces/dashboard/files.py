"""Scripts, styles and pictures from this package; pages load nothing from other hosts."""

from __future__ import annotations

from importlib.resources import files

from starlette.responses import Response

from onyxq import __version__
from onyxq.core.errors import NotFound
from onyxq.core.limits import Name
from onyxq.interfaces.dashboard.session import refused
from onyxq.interfaces.http.endpoint import Call, Endpoint
from onyxq.operations.table.operation import Args

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
_READ = {
    one.name: one.read_bytes()
    for one in sorted(files("onyxq.interfaces.dashboard").joinpath("static").iterdir(), key=lambda one: one.name)
    if one.is_file()
}


class File(Args):
    """A file."""

    file: Name


async def get_file(call: Call) -> Response:
    """Answer with a file, which browsers keep until the version changes."""
    name = call.args.file
    data = _READ.get(name)
    if data is None:
        raise NotFound(f"there is no file {name!r}", field="file")
    tag = f'"{__version__}-{len(data):x}"'
    headers = {"cache-control": "no-cache", "etag": tag, "x-content-type-options": "nosniff"}
    if call.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=KINDS[name[name.rindex(".") :]])


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/ui/static/{file}",
        name="file",
        tag="pages",
        summary="A script, style or picture of the pages",
        handle=get_file,
        args=File,
        role=None,
        answer={"type": "string"},
        media="text/plain",
        page=True,
        tell=refused,
    ),
)
