"""Planted bugs of the order of claims over several partitions and nodes."""

from __future__ import annotations

from simulation.planted.planted import Planted

SHARE_BUGS: tuple[Planted, ...] = (
    Planted(
        "a claim of many takes from one node",
        "onyxq/operations/claim_shares.py",
        "counts = _counts(offers, maximum) if len(offers) > 1 and not is_ahead(best.head) else {}",
        "counts = {}",
        "a task that is older than those that are claimed and given back is never granted",
        "shared_claims",
        quick=1,
    ),
    Planted(
        "partitions with outdated heads come first",
        "onyxq/leader/grants/ready_heads.py",
        "elif head[0].sort_key > keys[partition]:",
        "elif head[0].sort_key < keys[partition]:",
        "worse tasks of one partition are granted before better ones of another",
        "shared_claims",
    ),
)
