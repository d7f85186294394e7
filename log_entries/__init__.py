"""Every entry of the log, one module each: the only ways in which the replica changes.

The modules are pure (design: entries, replica, step). `log_entries.registry` lists them, and
`onyxq.core.entry` describes how a module is built. ``python -m log_entries`` prints the reference
page.
"""
