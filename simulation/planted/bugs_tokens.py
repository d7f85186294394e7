"""Planted bugs about fencing tokens: older ones that are taken for the newest."""

from __future__ import annotations

from simulation.planted.planted import Planted
from simulation.planted.seams import returning

TOKEN_BUGS: tuple[Planted, ...] = (
    Planted(
        "grants that may have landed when the log was lost are forgotten",
        "onyxq.leader.grants.granter:Granter._keep_undecided",
        returning(None),
        "a lapsed claim is taken for the newest while the log has a newer one",
        "granted_unheard",
        quick=1,
    ),
)
"""Bugs that scenes about fencing tokens must find."""
