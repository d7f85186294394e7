"""Programs that measure OnyxQ, and the systems with which it competes, on this machine."""
