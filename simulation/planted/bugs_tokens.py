"""Planted bugs of fencing tokens."""

from __future__ import annotations

from simulation.planted.planted import Planted
from simulation.planted.seams import returning

TOKEN_BUGS: tuple[Planted, ...] = (
    Planted(
        "grants that may be in the log when the log is lost are forgotten",
        "onyxq.leader.grants.granter:Granter._keep_undecided",
        returning(None),
        "the token of an expired claim is accepted although the log has a newer grant",
        "granted_unheard",
        quick=1,
    ),
)
"""The planted bugs of fencing tokens."""
