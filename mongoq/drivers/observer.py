"""Observer: what an instrumentation installs on the driver of a broker, such as ``mongoq.telemetry``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Observer:
    """Flows that replace others, and hooks for handlers.

    A broker without an observer pays one test of an attribute for each operation.

    Attributes:
        flows: flow functions, by the flow functions that they replace and call; both take the same arguments.
        make_hooks: called at the start of each worker; returns context managers around each call of a handler, the
            outermost first.
        flush: called at the end of each task of Spark, whose process may be killed after it; sends what was observed.
    """

    flows: Mapping[Callable[..., Any], Callable[..., Any]]
    make_hooks: Callable[[], Sequence[Callable[..., Any]]]
    flush: Callable[[], None]
