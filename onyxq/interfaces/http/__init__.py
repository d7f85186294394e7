"""The HTTP interface of a node: an ASGI application (`onyxq.interfaces.http.app`) and its server."""
