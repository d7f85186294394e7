"""The Java program that ZooKeeper and Spark run on."""

from __future__ import annotations

import os
import shutil

from onyxq.core.errors import Incomplete


def find_java() -> str:
    """Return the path of the ``java`` program; raises `Incomplete` if there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [os.path.join(home, "bin", "java")] if home else []
    for candidate in [*candidates, "java"]:
        found = shutil.which(candidate)
        if found:
            return found
    raise Incomplete(
        "ZooKeeper needs Java, and there is none in JAVA_HOME or on PATH",
        hint="Install a Java runtime, version 17 or newer (Debian: apt-get install openjdk-17-jre-headless).",
    )
