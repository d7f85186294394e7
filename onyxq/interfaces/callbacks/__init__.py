"""Callbacks of timers, over HTTP, TCP or an installed transport.

A timer is a task in the queue `onyxq.core.limits.TIMERS_QUEUE`, and its id is the unique key.  The leader of
the partition knows the task of each id (`onyxq.leader.timers`).  The leader's node claims due timers and
makes the callbacks (`onyxq.interfaces.callbacks.delivery`).
"""
