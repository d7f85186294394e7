"""The tasks of the example shops: ``onyxq worker start shop_tasks:app``."""

from __future__ import annotations

import os

from onyxq import App, context

app = App(os.environ.get("ONYXQ_CONNECT", "127.0.0.1:7400"))

PARCELS = 3


@app.task(queue="shop", retries=5)
async def ship(order: int) -> str:
    """Pack the parcels of an order, and report each."""
    for parcel in range(1, PARCELS + 1):
        await context().progress(parcel, PARCELS, f"parcel {parcel} is packed")
    return f"order {order} is on its way"
