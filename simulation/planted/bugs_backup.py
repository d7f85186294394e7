"""Planted bugs of backups: what they lack, have by halves, leave behind, or bring back."""

from __future__ import annotations

from simulation.planted.planted import Planted

BACKUP_BUGS: tuple[Planted, ...] = (
    Planted(
        "transactions go on under a hold",
        "log_entries/commit_transaction.py",
        "if (hold := on_hold(replica)) is not None:",
        "if (hold := on_hold(replica)) is not None and not hold.why:",
        "a transaction is in a backup by halves",
        "backups",
    ),
    Planted(
        "a backup does not wait for what was committed",
        "onyxq/history/backup/capture.py",
        "while self._now.transactions:",
        "while self._now.transactions and not self._now.hold:",
        "what a partition has not made visible yet is not in it",
        "backups",
    ),
    Planted(
        "a hold that was over is not noticed",
        "onyxq/history/backup/capture.py",
        "if self._held_since() != since or self._now.transactions:",
        "if self._now.transactions:",
        "a transaction that came in between is in a backup by halves",
        "backups",
    ),
    Planted(
        "pages are given before the log is read",
        "onyxq/operations/backup_rows.py",
        "while node.replica.position < position:",
        "while node.replica.position < 0:",
        "a leader that was deposed gives what it has: acknowledged tasks are missing",
        "backups",
    ),
    Planted(
        "the end of attempts is forgotten",
        "onyxq/history/backup/restore.py",
        "rows += history_rows(done.replica, done.outcomes, returned, lambda _: True)",
        "rows += ()",
        "attempts that ended while rows were read are not counted",
        "backups",
    ),
    Planted(
        "completions are left out",
        "onyxq/history/backup/file.py",
        "yield _page(found, self.origin)",
        'partition, rows = _page(found, self.origin); yield partition, [row for row in rows if row.key[2:3] != b"C"]',
        "what was done is done again",
        "backups",
    ),
    Planted(
        "rows are restored to one node of each partition",
        "onyxq/history/backup/restore.py",
        "for node in holders(replica.partitions[partition]):",
        "for node in holders(replica.partitions[partition])[:1]:",
        "two nodes that start first go on without what they lack",
        "backups",
    ),
    Planted(
        "tokens begin anew",
        "onyxq/log/first_record.py",
        "if segment_of(position) >= segment:",
        "if position >= 0:",
        "who worked before the restore keeps others out after it",
        "backups",
    ),
    Planted(
        "a restored cluster is on hold",
        "onyxq/history/backup/restore.py",
        "made = evolve(replica, position=position, cluster=renamed, hold=None)",
        "made = evolve(replica, position=position, cluster=renamed)",
        "no transaction goes through for as long as the hold had left",
        "backups",
        quick=1,
    ),
    Planted(
        "a hold never ends",
        "log_entries/hold_transactions.py",
        "hold = Hold(name=args.name, why=args.why, since=since, until_ms=replica.clock_ms + args.for_ms)",
        "hold = Hold(name=args.name, why=args.why, since=since, until_ms=replica.clock_ms + 1_000 * args.for_ms)",
        "no transaction goes through behind a backup that died",
        "backups",
    ),
    Planted(
        "a failed backup keeps its name",
        "onyxq/history/file_format.py",
        "if kind is None:",
        "if self._blocks:",
        "part of a cluster is restored for the whole",
        "backups",
    ),
)
"""Planted bugs about these."""
