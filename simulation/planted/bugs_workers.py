"""Planted bugs of workers: how they hold claims, end, and give back."""

from __future__ import annotations

from simulation.planted.planted import Planted

WORKER_BUGS: tuple[Planted, ...] = (
    Planted(
        "what a stop interrupts counts as failed",
        "onyxq/worker/loop.py",
        "await client.release(claim, timeout_ms=RELEASE_TIMEOUT_MS)",
        'await client.fail(claim, "stopped")',
        "every new version of a program costs its tasks an attempt",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a worker that stops keeps what it has not begun",
        "onyxq/worker/loop.py",
        "await client.release(claims, timeout_ms=RELEASE_TIMEOUT_MS)",
        "await client.get(claims[0].id)",
        "tasks wait for leases of workers that are gone, and count an attempt",
        "staff_changes",
    ),
    Planted(
        "claims are not renewed",
        "onyxq/worker/heartbeats.py",
        "await self._renew(client, claims, pause_s)",
        "await anyio.sleep(0)",
        "what takes longer than its lease is run by several at a time",
        "staff_changes",
        quick=3,
    ),
    Planted(
        "a worker hoards what it claimed ahead",
        "onyxq/worker/loop.py",
        "patience_s = min(PATIENCE_S, self._lease_ms / 4000)",
        "patience_s = self._lease_ms / 1000",
        "tasks wait behind a long one while others are idle",
        "staff_changes",
    ),
    Planted(
        "code goes on behind its lease",
        "onyxq/worker/heartbeats.py",
        "self._lost(claim)",
        "claim.unsure = None",
        "a worker that is cut off goes on with what another one has",
        "staff_cut_off",
    ),
    Planted(
        "a worker begins what came too late",
        "onyxq/worker/loop.py",
        "if job.claim.expires < now + self._lease_ms / 1000 / RENEWALS_PER_LEASE:",
        "if job.claim.expires < 0:",
        "a claim whose answer was long on the way is another's by now",
        "staff_cut_off",
    ),
    Planted(
        "checkpoints of earlier attempts are not found",
        "onyxq/worker/attempts.py",
        "self._earlier = [one for one in found if one.token != self.claim.token and not _is_progress(one.value)]",
        "self._earlier = [one for one in found if one.token == self.claim.token]",
        "every attempt begins from the beginning",
        "staff_changes",
    ),
)
