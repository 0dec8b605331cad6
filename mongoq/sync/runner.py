# Generated from mongoq/aio/runner.py by scripts/unasync.py. Do not edit.
"""Runner: the way by which pipelines and Spark send commands through a broker or a queue; workers hold the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from mongoq.drivers.threads.driver import ThreadDriver
from mongoq.protocol.flow import Flow

__all__ = ["Runner"]

C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")


class Runner(Generic[C]):
    """The part of ``Broker`` and ``Queue`` that runs flows: each has a driver, and a context of its kind."""

    _driver: ThreadDriver
    _context: C

    def _run(self, flow: Callable[Concatenate[C, P], Flow[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run a flow of the protocol with this context as its first argument, and return its result."""
        return self._driver.run(flow(self._context, *args, **options))

    def _run_within(
        self, seconds: float, flow: Callable[Concatenate[C, P], Flow[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run a flow as ``_run`` does, with a limit for all its commands together, waiting for a server included."""
        return self._driver.run_within(seconds, flow(self._context, *args, **options))
