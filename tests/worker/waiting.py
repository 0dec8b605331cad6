"""Waiting for what a worker does beside the test."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 20.0


def until(happened: Callable[[], object]) -> None:
    """Wait until something is true; fails when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)
