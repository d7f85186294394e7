"""The HTTP interface of a node: an ASGI application (`onyxq.http.app`) and its server."""
