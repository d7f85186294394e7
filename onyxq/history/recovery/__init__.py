"""Recovery of a cluster whose log was lost or set back: what the nodes kept, and a new log made of it."""

from __future__ import annotations
