"""Child processes that the kernel ends with the process that started them, even if that one is killed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def killed_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` for `subprocess.Popen`: SIGKILL ends the child when the thread that starts it ends.

    So start the child from a thread that lives as long as the child should, such as the main thread.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl  # looked up here: the child only makes system calls

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return prepare
