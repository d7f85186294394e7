"""The command line: nouns then verbs, light to start; everything heavy is imported by the command that needs it."""
