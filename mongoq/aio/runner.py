"""Runner: the way by which pipelines and Spark send commands through a broker or a queue; workers hold the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

from mongoq.drivers.aio.driver import AioDriver
from mongoq.protocol.flow import Flow

__all__ = ["AsyncRunner"]

C = TypeVar("C")
T = TypeVar("T")
P = ParamSpec("P")


class AsyncRunner(Generic[C]):
    """The part of ``AsyncBroker`` and ``AsyncQueue`` that runs flows: each has a driver, and a context of its kind."""

    _driver: AioDriver
    _context: C

    async def _run(self, flow: Callable[Concatenate[C, P], Flow[T]], *args: P.args, **options: P.kwargs) -> T:
        """Run a flow of the protocol with this context as its first argument, and return its result."""
        return await self._driver.run(flow(self._context, *args, **options))

    async def _run_within(
        self, seconds: float, flow: Callable[Concatenate[C, P], Flow[T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run a flow as ``_run`` does, with a limit for all its commands together, waiting for a server included."""
        return await self._driver.run_within(seconds, flow(self._context, *args, **options))
