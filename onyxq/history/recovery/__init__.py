"""Recovery of a cluster whose log was lost or set back: what the nodes kept, and a new log made from it."""

from __future__ import annotations
