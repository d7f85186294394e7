"""A node, a real PostgreSQL for the tests of a process, and a database of its own for each test."""

from __future__ import annotations

from tests.interfaces.conftest import client, live
from tests.outbox.postgres import database, postgres

__all__ = ["client", "database", "live", "postgres"]
