"""The HTTP interface of a node: an ASGI application and its server."""

from onyxq.http.app import App, create_app

__all__ = ["App", "create_app"]
