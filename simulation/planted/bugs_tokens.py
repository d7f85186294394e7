"""Planted bugs about fencing tokens: older ones that are taken for the newest."""

from __future__ import annotations

from simulation.planted.planted import Planted

TOKEN_BUGS: tuple[Planted, ...] = (
    Planted(
        "grants that may have landed when the log was lost are forgotten",
        "onyxq/leader/grants/granter.py",
        "if verdicts is None and outbox.closed:",
        "if False:",
        "a lapsed claim is taken for the newest while the log has a newer one",
        "granted_unheard",
        quick=1,
    ),
)
"""Bugs that scenes about fencing tokens must find."""
