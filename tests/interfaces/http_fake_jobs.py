"""The methods of jobs and savepoints of the service in memory (`tests.interfaces.http_world`)."""

from __future__ import annotations

from typing import Any

from onyxq.errors import JobConflict, NotFound
from onyxq.jobs.encoding import decode
from onyxq.jobs.encoding import digest as digest_of

NOW_MS = 1_800_000_000_000
JOB_VIEW = {"state": "running", "why": "", "error": "", "batch": None, "submitted_ms": NOW_MS, "ended_ms": None}


class FakeJobs:
    """Jobs, which run at once, and their savepoints, which are complete at once."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.savepoints: dict[str, dict[str, Any]] = {}

    def _job_submit(self, args: dict[str, Any]) -> dict[str, Any]:
        said, digest = decode(args["body"]), digest_of(args["body"])
        known = self.jobs.setdefault(said.id, {**JOB_VIEW, "id": said.id, "digest": digest})
        if known["digest"] != digest:
            raise JobConflict("another job", field="id")
        return {"id": said.id, "digest": digest, "position": 9, "repeat": False}

    def _job_replay(self, args: dict[str, Any]) -> dict[str, Any]:
        self._job_get(args)
        return {"id": f"{args['id']}-replay", "digest": bytes(16), "position": 9, "repeat": False}

    def _job_letters(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"letters": [], "counts": [], "after": None}

    def _job_requeue(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"id": f"{args['id']}-requeue", "count": 1, "more": False}

    def _job_get(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["id"] not in self.jobs:
            raise NotFound("there is no such job", field="id")
        return self.jobs[args["id"]]

    def _job_list(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "jobs": [self.jobs[name] for name in sorted(self.jobs)]}

    _job_wait = _job_seal = _job_get

    def _job_kill(self, args: dict[str, Any]) -> dict[str, Any]:
        return self._job_get(args) | {"state": "killed"}

    def _job_savepoint(self, args: dict[str, Any]) -> dict[str, Any]:
        self._job_get(args)
        made = {"state": "complete", "batch": 4, "at_ms": NOW_MS, "size_bytes": 7, "place": "/s", "position": 9}
        return self.savepoints.setdefault(args["name"], {**made, "name": args["name"], "job": args["id"]})

    def _job_savepoints(self, args: dict[str, Any]) -> dict[str, Any]:
        found = [one for _, one in sorted(self.savepoints.items()) if args.get("id") in (None, one["job"])]
        return {"cluster": "c0ffee", "position": 9, "savepoints": found}

    def _job_savepoint_delete(self, args: dict[str, Any]) -> dict[str, Any]:
        if self.savepoints.pop(args["name"], None) is None:
            raise NotFound("there is no such savepoint", field="name")
        return {}
