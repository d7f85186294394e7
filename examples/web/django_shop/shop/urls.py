"""The pages of the shop: an order, and those of tasks."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import include, path
from django.views.decorators.http import require_POST
from shop_tasks import app, ship

from onyxq.integrations.django import task_urls
from onyxq.outbox.django import Outbox
from shop.models import Order

outbox = Outbox()


@require_POST
@transaction.atomic
def order(request: HttpRequest) -> JsonResponse:
    """Store an order; a worker ships it if, and only if, the order is committed."""
    made = Order.objects.create(item=request.GET["item"])
    task_id = outbox.add(ship.s(made.id))
    return JsonResponse({"task": task_id.hex()}, status=202)


urlpatterns = [
    path("orders", order),
    path("tasks/", include(task_urls(app, outbox=True))),
]
