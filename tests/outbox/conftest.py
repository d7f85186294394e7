"""A real PostgreSQL for the tests of a process, and a database of its own for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.outbox.postgres import Missing, Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server; skips without PostgreSQL, except under ``CI``, where it fails."""
    try:
        server = Postgres()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The URL of an empty database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.url.rpartition("/")[0] + f"/{name}"
