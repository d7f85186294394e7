"""Jobs: what a job is, whether it can be, how it is encoded, where its segments go, who drives it."""
