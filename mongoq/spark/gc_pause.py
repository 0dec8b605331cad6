"""Pause of Python's cyclic garbage collector, while many objects without cycles are made.

The collector scans the young objects each time a certain number of them was made, and the rows of a read are all young
objects: the scans take more than half of the time of a read (see the documentation of benchmarks). Objects without
cycles are still freed as soon as their last reference is gone. The pause is used only in Spark's Python workers, which
run no other code meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["pause_while_making", "resting"]

T = TypeVar("T")
NOTHING = object()


@contextmanager
def resting() -> Iterator[None]:
    """Pause the collector inside a block; a collector that was off before stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pause_while_making(values: Iterator[T]) -> Iterator[T]:
    """Yield values, each made while the collector pauses; it runs again while the consumer handles the value."""
    while True:
        # Only around next: the code that takes the values runs with the collector.
        with resting():
            value = next(values, NOTHING)
        if value is NOTHING:
            return
        yield value  # type: ignore[misc]  # the end was checked above
