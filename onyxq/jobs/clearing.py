"""What jobs that are over left behind on a node's disk: checkpoints, and directories of hosts of their own.

Only what a peer keeps for itself; checkpoints on a path that peers share are not looked at.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection
from pathlib import Path

FOLDERS = ("checkpoints", "jobs")
"""Under a host's directory; each holds directories by the ids of jobs."""

log = logging.getLogger(__name__)


def clear(work: Path, keep: Collection[str]) -> list[str]:
    """Delete what is there of jobs that are not to be kept; whose."""
    gone = []
    for folder in FOLDERS:
        try:
            found = sorted((work / folder).iterdir())
        except OSError:
            continue  # nothing was ever kept
        for entry in found:
            if entry.name not in keep and entry.is_dir() and not entry.is_symlink():
                try:
                    shutil.rmtree(entry)
                    gone.append(entry.name)
                except OSError as error:
                    log.warning("what job %s left cannot be deleted: %s", entry.name, error)
    return gone
