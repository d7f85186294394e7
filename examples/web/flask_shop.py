"""A shop with Flask and no database: ``flask --app flask_shop run``."""

from __future__ import annotations

from flask import Flask, request
from shop_tasks import app, ship

from onyxq.integrations.flask import OnyxQ

web = Flask(__name__)
OnyxQ(app).init_app(web)


@web.post("/orders")
def order() -> tuple[dict[str, str], int]:
    """Enqueue the shipment of an order."""
    task = ship.enqueue(int(request.args["number"]))
    return {"task": task.id}, 202
