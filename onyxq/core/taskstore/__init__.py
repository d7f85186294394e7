"""The task store: small tasks that live in the replica, updated and claimed atomically (design: transactions).

An extension that comes with OnyxQ.  `update`, `claim` and `set_limits` are its entries, each one
atomic step of the log; `state` is what they change, `order` how a group's tasks are found by time.
"""
