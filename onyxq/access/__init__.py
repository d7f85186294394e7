"""Who may do what: tokens with roles, and one table of what each operation needs.

`onyxq.access.grants` has the values, `onyxq.operations.access.table` the needs of every operation,
`onyxq.operations.access.check` the check that HTTP and the TCP port share.
"""
