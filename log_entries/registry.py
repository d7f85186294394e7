"""The explicit list of entries that `onyxq.core.step` and the codec know.

A new entry is one module and one line here. The order is that in which obligations are looked for
and in which the reference page lists the entries.
"""

from __future__ import annotations

from types import ModuleType

from log_entries import (
    abort_join_cluster,
    accept_join_cluster,
    begin_savepoint,
    commit_batch,
    commit_transaction,
    complete_job,
    create_cluster,
    drain_node,
    driver_ready,
    drop_savepoint,
    expire_claims,
    fail_job,
    finish_gc,
    fire_periodic,
    force_partition,
    gc,
    grant_claims,
    grant_limited_claims,
    hold_transactions,
    keep_savepoint,
    kill_job,
    leave_cluster,
    notify_join_cluster,
    pause_periodic,
    prepare_join_cluster,
    purge,
    raise_minimum,
    ready_partition,
    release_claims,
    remove_periodic,
    renew_claims,
    reopen_tasks,
    replace_job,
    replace_node,
    replay_job,
    report_job,
    restore_job,
    seal_input,
    set_periodic,
    set_queue,
    set_slots,
    settle_partition,
    settle_transactions,
    submit_job,
    supersede_driver,
    yield_partition,
)
from onyxq.core.entry import Entries, describe

MODULES: tuple[ModuleType, ...] = (
    create_cluster,
    prepare_join_cluster,
    notify_join_cluster,
    accept_join_cluster,
    abort_join_cluster,
    leave_cluster,
    set_slots,
    drain_node,
    replace_node,
    raise_minimum,
    ready_partition,
    settle_partition,
    yield_partition,
    force_partition,
    set_queue,
    grant_claims,
    grant_limited_claims,
    renew_claims,
    release_claims,
    expire_claims,
    reopen_tasks,
    purge,
    commit_transaction,
    commit_batch,
    settle_transactions,
    hold_transactions,
    set_periodic,
    pause_periodic,
    remove_periodic,
    fire_periodic,
    submit_job,
    replay_job,
    replace_job,
    driver_ready,
    supersede_driver,
    seal_input,
    kill_job,
    complete_job,
    fail_job,
    report_job,
    begin_savepoint,
    keep_savepoint,
    drop_savepoint,
    restore_job,
    gc,
    finish_gc,
)

ENTRIES = Entries(map(describe, MODULES))
"""Name of an entry -> the entry; with those of installed extensions: `onyxq.system.extensions.installed`."""

VERSIONS = ENTRIES.versions
"""Versions that a peer of this program announces when it joins: name -> highest known version."""
