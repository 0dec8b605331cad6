"""The virtual broker for coroutine functions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.aio import AsyncBroker, AsyncQueue
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.model.process.clock import VirtualClock
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Queue
from mongoq.testing.async_worker import AsyncVirtualWorker
from mongoq.testing.broker import VirtualBroker
from mongoq.testing.driver import VirtualDriver
from mongoq.worker import AsyncWorker, Worker

__all__ = ["AsyncVirtualBroker"]


class AsyncVirtualBroker(AsyncBroker):
    """An ``AsyncBroker`` without a server: ``VirtualBroker`` for code that awaits its queues.

    It belongs to no event loop, so a plain test may make it. A test may push by the ``VirtualBroker`` and a handler may
    reserve by this broker, and the other way round:

    ```python
    virtual = VirtualBroker()
    app.broker = AsyncVirtualBroker(virtual)
    ```

    Args:
        virtual: the broker whose queues and clock it shares; by default a new one. Closing one closes both.

    Raises:
        ModuleNotFoundError: mongomock is not installed; the extra ``testing`` brings it.
        ArgumentInvalid: ``virtual`` is no ``VirtualBroker``.
    """

    def __init__(self, virtual: VirtualBroker | None = None) -> None:
        if virtual is not None and not isinstance(virtual, VirtualBroker):
            raise ArgumentInvalid("virtual", f"a VirtualBroker, not {type(virtual).__name__}")
        self._virtual = virtual or VirtualBroker()
        self._driver = VirtualDriver(self._virtual._driver)
        self._context = self._virtual._context
        self._on_close = None

    @property
    def clock(self) -> VirtualClock:
        """Clock of the broker: ``virtual.clock.now()``."""
        return self._virtual.clock

    def worker(self, production: Worker | AsyncWorker | Pipeline | None = None) -> AsyncVirtualWorker:
        """Return a worker that runs handlers on request, as ``VirtualBroker.worker`` does, in the test's event loop.

        Raises:
            ArgumentInvalid: ``production`` is no worker and no pipeline.
            GraphInvalid: the pipeline has faults; all faults at once.
        """
        return AsyncVirtualWorker(self, production)

    def advance(self, by: Duration) -> datetime:
        """Move the clock on, and return the new time, as ``VirtualBroker.advance`` does; nothing to await.

        Raises:
            ArgumentInvalid: ``by`` is no duration.
        """
        return self._virtual.advance(by)

    def force_retry(self, target: Item[Any] | ObjectId | str | Queue[Any] | AsyncQueue[Any]) -> int:
        """Make items that wait for a retry ready now, as ``VirtualBroker.force_retry`` does; nothing to await.

        Raises:
            ArgumentInvalid: the item does not wait: it is ready, reserved, settled or gone.
            QueueNameInvalid: ``target`` is neither an item nor a queue.
        """
        return self._virtual.force_retry(target)

    async def close(self) -> None:
        """Refuse further commands. Idempotent."""
        self._virtual.close()
