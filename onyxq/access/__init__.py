"""Access control: bearer tokens with roles, and one table of the roles that each operation requires.

`onyxq.access.grants` has the values, `onyxq.operations.access.table` the requirements of every
operation, `onyxq.operations.access.check` the check that HTTP and the TCP port share.
"""
