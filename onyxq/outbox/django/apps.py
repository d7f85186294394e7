"""The application of the outbox, as Django finds it."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The application ``onyxq.outbox.django``."""

    name = "onyxq.outbox.django"
    label = "onyxq_outbox"
    verbose_name = "OnyxQ outbox"
