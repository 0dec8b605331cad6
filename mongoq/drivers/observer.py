"""Observer: what an instrumentation installs on the driver of a broker, such as ``mongoq.telemetry``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Observer:
    """Operations that replace others, and hooks for handlers.

    A broker without an observer pays one test of an attribute for each operation.

    Attributes:
        operations: by the operations that they replace and call; both take the same arguments.
        find_hooks: called after each claim of a worker; returns context managers around each call of a handler, the
            outermost first. As long as they do not change, they are equal.
        flush: called at the end of each task of Spark, whose process may be killed after it; sends what was observed.
    """

    operations: Mapping[Callable[..., Any], Callable[..., Any]]
    find_hooks: Callable[[], Sequence[Callable[..., Any]]]
    flush: Callable[[], None]
