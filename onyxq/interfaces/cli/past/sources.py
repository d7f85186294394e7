"""Sources of log records: the log of a peer and archives, as one history."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onyxq.history.archive import Part, parts
from onyxq.history.live_log import live
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.client import Client


def pieces(context: Context, client: Client) -> list[Part]:
    """Return the log of the peer and the archives of ``--archive``."""
    return [live(client.call), *parts(map(Path, context.args.archive or ()))]
