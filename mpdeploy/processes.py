"""Processes that work for another one."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int) -> None:
    """Let the system end this process as soon as the thread that started it, of the process ``parent``, is no more.

    What hears nothing while it works would go on for nobody otherwise.  Without effect where the system has no such
    thing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that was said
            os._exit(1)
