"""Adds missing golden files; never changes an existing one."""

from __future__ import annotations

import argparse

from tests.entries.golden import HOME, add_missing
from tests.entries.golden.examples import EXAMPLES, SCRIPTS


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.entries.golden", description=__doc__)
    parser.add_argument("--add", action="store_true", required=True, help="write the files that are missing")
    parser.parse_args()
    added = add_missing(HOME, EXAMPLES, SCRIPTS)
    for place in added:
        print(f"added {place}")
    if not added:
        print("nothing is missing")


if __name__ == "__main__":
    main()
