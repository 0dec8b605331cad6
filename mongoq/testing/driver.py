"""Driver of asynchronous virtual brokers: commands in memory end at once, so no task ever waits."""

from __future__ import annotations

from typing import Any, TypeVar

from mongoq.drivers.aio import AioDriver
from mongoq.drivers.sessions import Sessions
from mongoq.drivers.threads import ThreadDriver
from mongoq.protocol.flow.commands import Flow

__all__ = ["VirtualDriver"]

T = TypeVar("T")


class VirtualDriver(AioDriver):
    """Runs flows by the driver for threads, in the caller's task, in any event loop."""

    def __init__(self, threads: ThreadDriver) -> None:
        # Not the parent's __init__: this driver has no client, no loop and no counters of its own.
        self._threads = threads

    async def run(self, flow: Flow[T], perform: Any = None) -> T:
        """Run a flow to its end."""
        return self._threads.run(flow)

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow to its end; no task can cancel it, because it never waits."""
        return self._threads.run(flow)

    @property
    def sessions(self) -> Sessions:
        """Sessions of the driver for threads; any use raises an error."""
        return self._threads.sessions

    async def close(self) -> None:
        """Refuse further commands. Idempotent."""
        self._threads.close()
