"""Waiting for something that happens beside the test: in a thread, a task, a process or the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

__all__ = ["CLOCKS", "PATIENCE", "until"]

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which a test gives up: many times what an idle machine needs, less than the time limit of a test."""
CLOCKS = timedelta(seconds=1)
"""By how much the clocks of the test, of mongoq and of the server may differ on one machine."""


def until(happened: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Wait until something is true, and return it; fails when it never is."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while not (value := happened()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.025)  # most looks ask the server, which has other tests to serve
    return value
