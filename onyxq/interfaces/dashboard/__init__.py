"""Pages for people, served by every peer: one module for each group of pages.

A page reads through the methods of the node. It changes things through the operations of the HTTP interface
(`onyxq.interfaces.dashboard.actions`), with the same roles and checks.
"""

from __future__ import annotations

from onyxq.interfaces.dashboard import (
    actions,
    cluster,
    files,
    flows,
    jobs,
    log,
    overview,
    periodic,
    queues,
    search,
    session_pages,
    settings,
    task,
    tasks,
    timers,
    workers,
)

ENDPOINTS = (
    *overview.ENDPOINTS,
    *queues.ENDPOINTS,
    *tasks.ENDPOINTS,
    *task.ENDPOINTS,
    *search.ENDPOINTS,
    *workers.ENDPOINTS,
    *timers.ENDPOINTS,
    *periodic.ENDPOINTS,
    *flows.ENDPOINTS,
    *jobs.ENDPOINTS,
    *cluster.ENDPOINTS,
    *log.ENDPOINTS,
    *settings.ENDPOINTS,
    *session_pages.ENDPOINTS,
    *files.ENDPOINTS,
    *actions.ENDPOINTS,
)
