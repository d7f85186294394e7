"""``onyxq completion``: scripts with which shells complete commands and options."""

from __future__ import annotations

import shtab

from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.parser import build


def completion(context: Context) -> None:
    """Print the script for a shell."""
    print(shtab.complete(build(COMMANDS, NOUNS), shell=context.args.shell))
