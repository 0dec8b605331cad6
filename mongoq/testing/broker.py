"""The virtual brokers: queues in memory, on a clock that stands still until the test moves it."""

from __future__ import annotations

from typing import Any

from mongoq.aio import AsyncBroker
from mongoq.data.clock import VirtualClock
from mongoq.errors import ArgumentInvalid
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker
from mongoq.testing.server import VirtualServer, VirtualTime
from mongoq.testing.worker import AsyncVirtualWorker, VirtualWorker
from mongoq.worker import AsyncWorker, Worker


class VirtualBroker(VirtualTime, Broker):
    """A ``Broker`` without a server, for tests of handlers: everything happens in memory, in the caller's thread.

    ```python
    with VirtualBroker() as virtual:
        virtual.queue("orders").push({"id": 1}, delay=60)
        virtual.advance(60)
        item = virtual.queue("orders").reserve()
    ```

    It is a mongomock collection with a ``VirtualClock``. Features that need a server are refused or fail with an error
    of mongomock: UUIDs in payloads, and the patches ``$mul`` and ``$rename`` of a ``Move``. A transaction, also in a
    handler, ends the test's run with ``TransactionsUnavailable``; it does not count as a failure of the item.
    ``reserve(wait=)`` waits in real time, so leave ``wait`` out. To test these features, use a real server (fixture
    ``mongoq_broker``).

    Args:
        clock: the clock of the broker; by default a new one, which begins on 1 January 2024.

    Raises:
        ModuleNotFoundError: mongomock is not installed; the extra ``testing`` brings it.
        ArgumentInvalid: ``clock`` is no ``VirtualClock``.
    """

    def __init__(self, *, clock: VirtualClock | None = None) -> None:
        if clock is not None and not isinstance(clock, VirtualClock):
            raise ArgumentInvalid("clock", f"a mongoq.VirtualClock, not {type(clock).__name__}")
        own = clock or VirtualClock()
        super().__init__(_collection(), clock=own)
        self._driver._counter_flush = None  # it is a thread; stats() adds up the counters without it
        self._server = VirtualServer(self._driver, self._context, own)

    @property
    def clock(self) -> VirtualClock:
        """Clock of the broker: ``virtual.clock.now()``."""
        return self._server.clock

    def worker(self, production: Worker | AsyncWorker | Pipeline | None = None) -> VirtualWorker:
        """Return a worker that runs handlers on request, one item at a time.

        Args:
            production: a worker whose consumers the virtual worker takes over, with all their options, or a pipeline
                whose stages it takes over. It is not changed. Pushes inside its handlers still go to their own broker.

        Raises:
            ArgumentInvalid: ``production`` is no worker and no pipeline.
            GraphInvalid: the pipeline has faults; all faults at once.
        """
        return VirtualWorker(self, production)

    def close(self) -> None:
        """Refuse further commands. Idempotent; the items of the queues are gone with the broker."""
        super().close()
        self._server.close()


def _collection() -> Any:
    try:
        import mongomock
    except ModuleNotFoundError as error:
        hint = "the virtual broker needs mongomock: install mongoq-driver[testing] (pip install '.[testing]')"
        raise ModuleNotFoundError(hint, name="mongomock") from error
    client: Any = mongomock.MongoClient(tz_aware=True)
    return client["virtual"]["mongoq"]


class AsyncVirtualBroker(VirtualTime, AsyncBroker):
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
        self._server = self._virtual._server
        self._driver = self._server.driver
        self._context = self._virtual._context
        self._collection = self._virtual.collection
        self._on_close = None
        self._watches = []

    @property
    def clock(self) -> VirtualClock:
        """Clock of the broker: ``virtual.clock.now()``."""
        return self._server.clock

    def worker(self, production: Worker | AsyncWorker | Pipeline | None = None) -> AsyncVirtualWorker:
        """Return a worker that runs handlers on request, as ``VirtualBroker.worker`` does, in the test's event loop.

        Raises:
            ArgumentInvalid: ``production`` is no worker and no pipeline.
            GraphInvalid: the pipeline has faults; all faults at once.
        """
        return AsyncVirtualWorker(self, production)

    async def close(self) -> None:
        """Refuse further commands. Idempotent."""
        self._virtual.close()
