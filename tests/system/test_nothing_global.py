"""Invariant 7: a batcher leaves the process around it as it was."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import warnings
from typing import Any

from pybatcher import Batcher, BlockingBatcher


def of_the_process() -> dict[str, Any]:
    """What a library could change for everybody."""
    process: dict[str, Any] = {
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup descriptor": _wakeup_descriptor(),
        "logging": (list(logging.root.handlers), logging.root.level, logging.getLoggerClass()),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "switch interval": sys.getswitchinterval(),
    }
    if sys.version_info < (3, 14):  # from there on, to ask for the policy is deprecated
        process["event loop policy"] = asyncio.get_event_loop_policy()
    return process


def _wakeup_descriptor() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor


async def test_a_batcher_changes_nothing_around_it() -> None:
    before = of_the_process()
    async with Batcher() as batcher:
        await batcher.generate("Once upon a time", max_tokens=4)
        assert of_the_process() == before
    assert of_the_process() == before


def test_nor_does_a_blocking_batcher() -> None:
    before = of_the_process()
    with BlockingBatcher() as batcher:
        batcher.generate("Once upon a time", max_tokens=4)
        assert of_the_process() == before
    assert of_the_process() == before
