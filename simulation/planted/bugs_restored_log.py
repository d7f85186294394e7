"""Planted bugs of a log that goes back: what is not looked at, not compared, or promised to anybody."""

from __future__ import annotations

from simulation.planted.planted import Planted

RESTORED_LOG_BUGS: tuple[Planted, ...] = (
    Planted(
        "a node that starts does not check the log",
        "onyxq/node/membership.py",
        "if node.replica.position == START:",
        "if node.replica.position < START:",
        "a node goes on with an older copy: tokens fall, finished tasks run again",
        "restored_log",
    ),
    Planted(
        "the digest of the log is not compared",
        "onyxq/node/log_check.py",
        "if digest != mark.digest or records[-1].position != mark.position:",
        "if records[-1].position != mark.position:",
        "an older copy on which others have written is taken for the log",
        "restored_log",
    ),
    Planted(
        "the digests that a snapshot has of earlier positions are not compared",
        "onyxq/core/log/digest.py",
        "return self.position if step is not None and step != self.digest[:TRAIL_BYTES] else None",
        "return None",
        "an older copy that was collected since is taken for the log",
        "restored_log",
    ),
    Planted(
        "a running node does not look at the log",
        "onyxq/node/membership.py",
        "nursery.start_soon(watch, node, session, self._look, self._witnesses)",
        "nursery.start_soon(trio.sleep_forever)",
        "a node whose session is refused says nothing",
        "restored_log",
    ),
    Planted(
        "a session that reconnects reads on without a check",
        "onyxq/node/membership.py",
        "while session.connections != self._connection:",
        "while session.connections < self._connection:",
        "records of another log follow on those of the one that was read",
        "restored_log",
    ),
    Planted(
        "a node that reconnects does not ask the others how far they have read",
        "onyxq/node/log_check.py",
        "if connection == self._asked_over or replica.cluster is None:",
        "if connection == connection:",
        "a node that has read no more than the older copy leads and grants on it",
        "restored_log",
    ),
    Planted(
        "a node promises epochs to leaders of any log",
        "onyxq/operations/service.py",
        'await confirm_leader(self.node, *args["log"])',
        'assert args["log"]',
        "new machines on an older copy lead with the votes of nodes that know better",
        "restored_log",
    ),
)
"""Planted bugs about these."""
