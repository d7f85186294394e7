"""Programs that measure OnyxQ, and the systems that people would use instead, on this machine."""
