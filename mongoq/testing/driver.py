"""The driver of asynchronous virtual brokers: what is in memory is there at once, and nobody waits for it."""

from __future__ import annotations

from typing import Any, TypeVar

from mongoq.drivers.aio import AioDriver
from mongoq.drivers.sessions import Sessions
from mongoq.drivers.threads import ThreadDriver
from mongoq.protocol.flow.commands import Flow

__all__ = ["VirtualDriver"]

T = TypeVar("T")


class VirtualDriver(AioDriver):
    """Runs flows by the driver for threads, in the caller's task, whichever event loop that belongs to."""

    def __init__(self, threads: ThreadDriver) -> None:
        self._threads = threads

    async def run(self, flow: Flow[T], perform: Any = None) -> T:
        """Run a flow to its end."""
        return self._threads.run(flow)

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow to its end, which nobody cancels."""
        return self._threads.run(flow)

    @property
    def sessions(self) -> Sessions:
        """There are none, and it says so."""
        return self._threads.sessions

    async def close(self) -> None:
        """Refuse further commands. Idempotent."""
        self._threads.close()
