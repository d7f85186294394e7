"""The command line: a noun, then a verb. A command imports what it needs when it runs, so that start-up is fast."""
