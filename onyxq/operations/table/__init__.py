"""The table of operations: each is declared once, with everything that follows from it.

It imports only the core, so that clients, workers and the command line can use it without the server.
`onyxq.operations.table.operation` says what a row has, `onyxq.operations.table.everything` lists them.
"""
