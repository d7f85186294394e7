"""The explicit list of entries: what `onyxq.step` and the codec know.

A new entry is one module and one line here.  The order is that in which obligations
are looked for and in which the reference page lists them.
"""

from __future__ import annotations

from types import ModuleType

from log_entries import (
    abort_join_cluster,
    accept_join_cluster,
    create_cluster,
    drain_node,
    expire_claims,
    finish_gc,
    gc,
    grant_claims,
    leave_cluster,
    notify_join_cluster,
    prepare_join_cluster,
    raise_minimum,
    ready_partition,
    release_claims,
    renew_claims,
    replace_node,
    set_slots,
    settle_partition,
    yield_partition,
)
from onyxq.entry import Entries, describe

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
    grant_claims,
    renew_claims,
    release_claims,
    expire_claims,
    gc,
    finish_gc,
)

ENTRIES = Entries(map(describe, MODULES))
"""Name of an entry -> the entry; with those of installed extensions: `onyxq.extensions.installed`."""

VERSIONS = ENTRIES.versions
"""What a peer of this program announces when it joins: name -> highest version known."""
