"""``onyxq config``: the settings that a command would use."""

from __future__ import annotations

from onyxq.interfaces.cli.context import Context
from onyxq.system.settings import SECRET, SETTINGS, Setting


def show(context: Context) -> None:
    """Print every setting, its value and its source."""
    found = [context.config.setting(name, getattr(context.args, name, None)) for name in SETTINGS]
    rows = [{"setting": one.name, "value": _shown(one), "source": one.source} for one in found]
    context.out.table({"settings": rows}, rows, ("setting", "value", "source"))


def _shown(one: Setting) -> str | int | None:
    return "(hidden)" if one.name in SECRET and one.value else one.value
