"""Clients of a cluster: `Client` for threads, `AsyncClient` for trio and asyncio."""

from __future__ import annotations

from onyxq.client.asynchronous import AsyncClient
from onyxq.client.blocking import Client
from onyxq.client.claims import Claim, ClaimBatch
from onyxq.client.values import ClaimRecord, Page, Submitted, Task, TaskUpdate

__all__ = ["AsyncClient", "Claim", "ClaimBatch", "ClaimRecord", "Client", "Page", "Submitted", "Task", "TaskUpdate"]
