"""A shop with FastAPI and SQLAlchemy: an order and its task are stored in one transaction of PostgreSQL.

``PGHOST``, ``PGUSER`` and so on name the database. Serve it: ``hypercorn fastapi_shop:api``.
"""

from __future__ import annotations

from fastapi import FastAPI
from shop_tasks import app, ship
from sqlalchemy import BigInteger, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onyxq.integrations.fastapi import OnyxQ
from onyxq.outbox.sqlalchemy import Outbox


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    item: Mapped[str]


outbox = Outbox(Base.metadata)
engine = create_engine("postgresql+psycopg://")
Base.metadata.create_all(engine)

queue = OnyxQ(app, outbox=True)
api = FastAPI(lifespan=queue.lifespan)
queue.install(api)


@api.post("/orders", status_code=202)
def order(item: str) -> dict[str, str]:
    """Store an order; a worker ships it if, and only if, the order is committed."""
    with Session(engine) as session, session.begin():
        made = Order(item=item)
        session.add(made)
        session.flush()
        task_id = outbox.add(session, ship.s(made.id))
    return {"task": task_id.hex()}
