"""A disk that loses unsynced writes, for real processes: they preload a library that watches their system calls.

The library (``power_cut.c``) copies a file aside each time the process syncs it.  `PowerCut.cut` restores these
copies, as a power cut would.  A file that was never synced becomes empty.  File names survive the cut;
`PowerCut.nameless` lists the renamed files whose directory was not synced.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from attrs import frozen

SOURCE = Path(__file__).with_name("power_cut.c")


@frozen
class PowerCut:
    """The disk below a directory, for processes that have `environment`."""

    root: Path
    aside: Path
    library: Path

    @classmethod
    def at(cls, root: Path, scratch: Path) -> PowerCut:
        """Compile the library; it and the durable copies are kept in ``scratch``, which must be outside ``root``."""
        scratch.mkdir()
        library = scratch / "power_cut.so"
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        aside = scratch / "durable"
        aside.mkdir()
        return cls(root.resolve(), aside, library)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the processes."""
        return {"LD_PRELOAD": str(self.library), "POWER_ROOT": str(self.root), "POWER_DISK": str(self.aside)}

    def events(self) -> list[tuple[str, Path]]:
        """Return the syncs and renames so far, in order, as ``("sync" or "rename", path)``."""
        lines = (self.aside / "events").read_text().splitlines() if (self.aside / "events").exists() else []
        return [(what, Path(path)) for what, _, path in (line.partition(" ") for line in lines)]

    def nameless(self) -> list[Path]:
        """Return the files that a power cut could deprive of their new name: renamed, directory not synced since."""
        left: dict[Path, None] = {}
        for what, path in self.events():
            if what == "rename":
                left[path] = None
            else:
                left = {file: None for file in left if file.parent != path}
        return list(left)

    def cut(self) -> None:
        """Give every file the content that a power cut leaves. The processes must have ended."""
        for file in sorted(self.root.rglob("*")):
            if file.is_file() and not file.is_symlink():
                durable = self.aside / str(file.stat().st_ino)
                content = durable.read_bytes() if durable.exists() else b""
                if content != file.read_bytes():
                    with open(file, "r+b") as kept:
                        kept.truncate(0)
                        kept.write(content)
        os.sync()
