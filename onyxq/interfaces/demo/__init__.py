"""``onyxq demo``: map and reduce tasks that count words on a cluster that loses a peer."""
