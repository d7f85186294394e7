"""All planted bugs. Each is a documented value: a seam of the tree, and the fault that is put there."""

from __future__ import annotations

from simulation.planted.bugs_backup import BACKUP_BUGS
from simulation.planted.bugs_batches import BATCH_BUGS
from simulation.planted.bugs_cancels import CANCEL_BUGS
from simulation.planted.bugs_claim_order import CLAIM_ORDER_BUGS
from simulation.planted.bugs_claims_ahead import CLAIM_AHEAD_BUGS
from simulation.planted.bugs_copies import COPY_BUGS
from simulation.planted.bugs_disks import DISK_BUGS
from simulation.planted.bugs_early_grants import EARLY_GRANT_BUGS
from simulation.planted.bugs_facts import FACT_BUGS
from simulation.planted.bugs_facts_transactions import FACT_TRANSACTION_BUGS
from simulation.planted.bugs_flows import FLOW_BUGS
from simulation.planted.bugs_jobs import JOB_BUGS
from simulation.planted.bugs_leaders import LEADER_BUGS
from simulation.planted.bugs_leases import LEASE_BUGS
from simulation.planted.bugs_log import LOG_BUGS
from simulation.planted.bugs_lost_disks import LOST_DISK_BUGS
from simulation.planted.bugs_moves import MOVE_BUGS
from simulation.planted.bugs_reads import READ_BUGS
from simulation.planted.bugs_recovery import RECOVERY_BUGS
from simulation.planted.bugs_restored_log import RESTORED_LOG_BUGS
from simulation.planted.bugs_retention import RETENTION_BUGS
from simulation.planted.bugs_rules import RULE_BUGS
from simulation.planted.bugs_stores import STORE_BUGS
from simulation.planted.bugs_taskstore import TASKSTORE_BUGS
from simulation.planted.bugs_timers import TIMER_BUGS
from simulation.planted.bugs_tokens import TOKEN_BUGS
from simulation.planted.bugs_transactions import TRANSACTION_BUGS
from simulation.planted.bugs_workers import WORKER_BUGS
from simulation.planted.planted import Planted

PLANTED: tuple[Planted, ...] = (
    *LOG_BUGS,
    *LEADER_BUGS,
    *STORE_BUGS,
    *TRANSACTION_BUGS,
    *CLAIM_AHEAD_BUGS,
    *COPY_BUGS,
    *DISK_BUGS,
    *LOST_DISK_BUGS,
    *RULE_BUGS,
    *FLOW_BUGS,
    *CANCEL_BUGS,
    *RETENTION_BUGS,
    *WORKER_BUGS,
    *CLAIM_ORDER_BUGS,
    *TASKSTORE_BUGS,
    *JOB_BUGS,
    *BATCH_BUGS,
    *BACKUP_BUGS,
    *RECOVERY_BUGS,
    *RESTORED_LOG_BUGS,
    *READ_BUGS,
    *TIMER_BUGS,
    *TOKEN_BUGS,
    *LEASE_BUGS,
    *EARLY_GRANT_BUGS,
    *FACT_BUGS,
    *FACT_TRANSACTION_BUGS,
    *MOVE_BUGS,
)
"""Every planted bug."""

__all__ = ["PLANTED", "Planted"]
