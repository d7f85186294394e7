"""Timers: HTTP and TCP callbacks that are made once a time has come, as tasks of a queue of their own.

A timer is a task with a unique key, its id, in the queue `onyxq.core.limits.TIMERS_QUEUE`.  Nothing of a
queue is done twice here: the partition's leader keeps which task stands for an id
(`onyxq.leader.timers`), and its node claims what is due and makes the callbacks
(`onyxq.interfaces.callbacks.delivery`).
"""
