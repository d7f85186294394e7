"""Access control: bearer tokens with roles, and one table of the roles that each operation requires.

`onyxq.access.grants` has the values, `onyxq.operations.table.access` the requirements of every
operation, `onyxq.operations.checks.access` the check that HTTP and the TCP port share.
"""
