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
        hooks: context managers around each call of a handler, in workers that begin later; the first is the outermost.
    """

    flows: Mapping[Callable[..., Any], Callable[..., Any]]
    hooks: Sequence[Callable[..., Any]]
