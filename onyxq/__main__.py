"""``python -m onyxq``: the command line."""

from __future__ import annotations

from onyxq.interfaces.cli.main import main

if __name__ == "__main__":
    main()
