"""Starting the hosts of jobs that have settings of their own (design: jobs on Spark).

The node's driver of jobs starts a host with the peer's settings. A job with ``own_host`` may add to them
(`onyxq.jobs.host_settings`). Its definition is in the replica, so each start of its host reads them there.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from attrs import evolve

from onyxq.jobs.encoding import decode
from onyxq.jobs.host_settings import with_settings
from onyxq.jobs.model import Job
from onyxq.node.jobs.driver import HOSTS, SparkSettings
from onyxq.node.jobs.hosts import Launch, Link, Plan
from onyxq.node.node import Node


class JobHosts:
    """Starts the hosts of one node."""

    def __init__(self, node: Node, settings: SparkSettings, launch: Launch) -> None:
        """``launch``: starts a host as its plan says."""
        self._node = node
        self._folder = Path(settings.work) / HOSTS
        self._launch = launch

    def launch(self, plan: Plan) -> AbstractAsyncContextManager[Link]:
        """Start a host; see `onyxq.node.jobs.hosts.Launch`."""
        job = self._job(plan)
        if job is not None and job.host is not None:
            plan = evolve(plan, conf=with_settings(plan.conf, job.host))
        return self._launch(plan)

    def _job(self, plan: Plan) -> Job | None:
        """Return the job whose own host is to be started; None for the host of all other jobs."""
        work = Path(plan.work)
        known = self._node.replica.jobs.get(work.name) if work.parent == self._folder else None
        return None if known is None else decode(known.body)
