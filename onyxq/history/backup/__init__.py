"""Backups of a whole cluster: the file, taking one from a cluster that is in use, and restoring one offline."""

from __future__ import annotations
