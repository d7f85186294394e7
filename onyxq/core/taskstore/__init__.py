"""The task store: small tasks that live in the replica, updated and claimed atomically (design: transactions).

An extension that is part of OnyxQ.  Its entries are `update`, `claim` and `set_limits`; each is one
atomic step of the log.  `state` is what they change, and `order` sorts a group's tasks by time.
"""
