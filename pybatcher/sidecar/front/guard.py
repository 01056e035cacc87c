"""`guard_child`: ties the life of a worker process to that of the front that started it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time

__all__ = ["FRONT_SIGNALS", "PARENT_VARIABLE", "guard_child"]

FRONT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or an init system may send to all processes of the sidecar at once.

The front acts on them: it drains, or reloads, and needs its worker for that.
"""

PARENT_VARIABLE = "PYBATCHER_FRONT_PID"
"""The environment variable by which a front passes its process id to its worker."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PARENT_IS_GONE = 3  # exit status; no parent is left to read it
_PAUSE = 1.0  # seconds between two checks of the parent


def guard_child() -> None:
    """Tie this process to the front that spawned it (see worker_process.py). Main thread only.

    The process is killed when the front ends, exits if the front has ended already, and ignores
    the signals that are for the front. A crash inside compiled code writes the Python stacks to
    stderr.
    """
    for number in FRONT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # The front blocked them over the start; ignored now, those that came meanwhile are dropped.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FRONT_SIGNALS)
    if sys.stderr is not None:
        faulthandler.enable()
    if sys.platform == "linux":
        # If the kernel refuses this, EOF on the socket to the front ends the process, later.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    # Read after prctl, which does not report a front that ended before it. A parent with process id
    # 1 would be no sign of that: in a container the front itself may have it.
    front = os.environ.pop(PARENT_VARIABLE, None)
    if front is None:
        return
    if front != str(os.getppid()):
        os._exit(_PARENT_IS_GONE)
    if sys.platform != "linux":
        watch = threading.Thread(
            target=_end_without, args=(int(front),), name="pybatcher-guard", daemon=True
        )
        watch.start()


def _end_without(parent: int) -> None:
    """End this process once it has another parent, which Linux does by prctl above."""
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    os._exit(_PARENT_IS_GONE)
