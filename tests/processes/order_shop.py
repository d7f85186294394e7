"""A web process for `tests.processes.test_outbox`: ``POST /orders/N`` stores order N and its task in one transaction.

Run as ``python -m tests.processes.order_shop PORT DATABASE_URL``, until it is killed. A repeated request changes
nothing. The table ``orders`` has the id of each order's task.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

import psycopg
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from onyxq import Step
from onyxq.outbox.psycopg import Outbox

QUEUE = "orders"
KEYS = 5
"""Each fifth order has no ordering key, the others have one of four."""

outbox = Outbox()
own = threading.local()


def connected(database: str) -> psycopg.Connection:
    """Return the connection of this thread, opened again after an error."""
    found: psycopg.Connection | None = getattr(own, "connection", None)
    if found is None or found.closed:
        found = own.connection = psycopg.connect(database, connect_timeout=5)
    return found


def store(database: str, request: Request) -> JSONResponse:
    """Store an order and its task, unless they are stored."""
    number = int(request.path_params["number"])
    key = {"ordering_key": f"customer {number % KEYS}"} if number % KEYS else {}
    try:
        connection = connected(database)
        with connection.transaction():
            insert = "INSERT INTO orders (id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING id"
            if connection.execute(insert, [number]).fetchone() is not None:
                task_id = outbox.add(connection, Step(QUEUE, str(number).encode(), **key))
                connection.execute("UPDATE orders SET task_id = %s WHERE id = %s", [task_id, number])
    except psycopg.Error as error:
        return JSONResponse({"error": str(error)}, status_code=503)
    return JSONResponse({"order": number})


def main(port: str, database: str) -> None:
    """Serve until killed."""
    app = Starlette(routes=[Route("/orders/{number:int}", partial(store, database), methods=["POST"])])
    trio.run(serve, app, Config.from_mapping(bind=[f"127.0.0.1:{port}"], accesslog=None))


if __name__ == "__main__":
    main(*sys.argv[1:])
