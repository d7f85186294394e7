"""``onyxq demo``: words counted by map and reduce tasks on a cluster that loses a peer on the way."""
