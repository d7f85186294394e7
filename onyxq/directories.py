"""Directories that a user names in a setting: made, and refused by the setting's name where they cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

from onyxq.errors import BadRequest

PRIVATE = 0o700
"""Mode of a new directory: data and archives hold what tasks carry."""


def usable(path: str | Path, field: str) -> Path:
    """Return a directory in which this process can make files, made if it is missing.

    ``field``: the setting that names it. Raises `BadRequest` with the setting, the path and the reason.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(0, "this user may not read and write it")
    except OSError as error:
        hint = "Name a directory that exists, or that this user can make, and that this user can write."
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise BadRequest(f"{path} cannot be used as a directory: {reason}", field=field, hint=hint) from None
    return directory


__all__ = ["PRIVATE", "usable"]
