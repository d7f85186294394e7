"""``onyxq config``: the settings that a command would use."""

from __future__ import annotations

from onyxq.interfaces.cli.context import Context


def show(context: Context) -> None:
    """Print every setting, its value and its source."""
    rows = [{"setting": one.name, "value": one.value, "source": one.source} for one in context.settings()]
    context.out.table({"settings": rows}, rows, ("setting", "value", "source"))
