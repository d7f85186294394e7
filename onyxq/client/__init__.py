"""Clients of a cluster: `Client` for threads, `AsyncClient` for trio and asyncio."""

from __future__ import annotations

from onyxq.client.asynchronous import AsyncClient
from onyxq.client.blocking import Client
from onyxq.client.claims import Claim, ClaimBatch
from onyxq.client.flow_calls import AsyncFlowHandle, FlowHandle
from onyxq.client.flows import Enqueued, Flow, Step
from onyxq.client.jobs import JobOutcome
from onyxq.client.policy import OF_QUEUE
from onyxq.client.taskstore import AsyncTaskStore, StoredTask, TaskStore
from onyxq.client.transactions import AsyncTransaction, BlockingTransaction, Committed
from onyxq.client.values import ClaimRecord, Page, Submitted, Task, TaskUpdate

__all__ = [
    "AsyncClient",
    "AsyncFlowHandle",
    "AsyncTaskStore",
    "AsyncTransaction",
    "BlockingTransaction",
    "Claim",
    "ClaimBatch",
    "ClaimRecord",
    "Client",
    "Committed",
    "Enqueued",
    "Flow",
    "FlowHandle",
    "JobOutcome",
    "OF_QUEUE",
    "Page",
    "Step",
    "StoredTask",
    "Submitted",
    "Task",
    "TaskStore",
    "TaskUpdate",
]
