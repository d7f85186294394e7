"""Every entry of the log, one module each: the only ways in which the replica changes.

Pure (design: entries, replica, step).  `log_entries.registry` lists the modules; how a
module is built is told in `onyxq.core.entry`.  ``python -m log_entries`` prints the reference
page.
"""
