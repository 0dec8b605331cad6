"""Python's collector of cycles at rest, while many objects are made that hold none.

It looks through the young objects each time so many were made, and rows are nothing but young objects: that takes more
than half of the time of a read (see the documentation of benchmarks). What is made meanwhile is freed as soon as
nobody has it, as ever. Only in the Python workers of Spark, which do nothing else then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["made_at_rest", "resting"]

T = TypeVar("T")
NOTHING = object()


@contextmanager
def resting() -> Iterator[None]:
    """Let the collector rest for the length of a block; one that rests already is left so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def made_at_rest(values: Iterator[T]) -> Iterator[T]:
    """Yield values, each of them made while the collector rests; whoever takes them runs with it."""
    while True:
        with resting():
            value = next(values, NOTHING)
        if value is NOTHING:
            return
        yield value  # type: ignore[misc]  # not the mark of the end
