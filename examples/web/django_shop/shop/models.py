"""The tables of the shop."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order."""

    id = models.BigAutoField(primary_key=True)
    item = models.CharField(max_length=100)
