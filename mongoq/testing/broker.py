"""The virtual broker: queues in memory, on a clock that stands still until it is moved."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from bson import ObjectId

from mongoq.aio import AsyncQueue
from mongoq.errors import ArgumentInvalid
from mongoq.model.arguments import Duration
from mongoq.model.item import Item
from mongoq.model.process.clock import VirtualClock
from mongoq.pipeline.pipeline import Pipeline
from mongoq.sync import Broker, Queue
from mongoq.testing.loop import PrivateLoop
from mongoq.testing.server import VirtualServer
from mongoq.testing.worker import VirtualWorker
from mongoq.worker import AsyncWorker, Worker

__all__ = ["VirtualBroker"]


class VirtualBroker(Broker):
    """A ``Broker`` without a server, for tests of handlers: everything happens in memory, in the caller's thread.

    ```python
    with VirtualBroker() as virtual:
        virtual.queue("orders").push({"id": 1}, delay=60)
        virtual.advance(60)
        item = virtual.queue("orders").reserve()
    ```

    It is a mongomock collection with a ``VirtualClock``. What needs a server is refused or fails with an error of
    mongomock's: UUIDs in payloads, and the patches ``$mul`` and ``$rename`` of a ``Move``. A transaction, of a handler
    as well, ends the run of the test with ``TransactionsUnavailable``; it is no failure of the item's.
    ``reserve(wait=)`` waits in real time, so leave ``wait`` out. For tests of these take a real server (fixture
    ``mongoq_broker``).

    Args:
        clock: the clock to go by; by default one of its own, which begins on 1 January 2024.

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
        self._server = VirtualServer(self._driver, self._context, own, PrivateLoop(), {})

    @property
    def clock(self) -> VirtualClock:
        """The clock that it goes by: ``virtual.clock.now()``."""
        return self._server.clock

    def worker(self, production: Worker | AsyncWorker | Pipeline | None = None) -> VirtualWorker:
        """Return a worker that runs handlers when it is told to, one item at a time.

        Args:
            production: a worker whose consumers are taken over, with all their options, to run here, or a pipeline
                whose stages are. It is not changed; what its handlers themselves push goes where they push it.

        Raises:
            ArgumentInvalid: ``production`` is no worker and no pipeline.
            GraphInvalid: the stages of the pipeline do not go together; all faults at once.
        """
        return VirtualWorker(self, production)

    def advance(self, by: Duration) -> datetime:
        """Move the clock on, so that delays, retries and leases come due, and return the new time.

        Within a handler it keeps the leases of the items that run, as a worker would, and sets ``job.lost`` when one of
        them is lost.

        Args:
            by: a ``timedelta`` or seconds.

        Raises:
            ArgumentInvalid: ``by`` is no duration.
        """
        return self._server.advance(by)

    def force_retry(self, target: Item[Any] | ObjectId | str | Queue[Any] | AsyncQueue[Any]) -> int:
        """Make ready now what waits for a retry, without moving the clock, and return how many items that were.

        Args:
            target: an item or its id, which may also wait for a delay it was pushed with; or a queue, a handle or its
                name: all its items that wait after a run.

        Raises:
            ArgumentInvalid: the item waits for nothing: it is ready, reserved, settled or gone.
            QueueNameInvalid: ``target`` is none of these.
        """
        return self._server.force_retry(target)

    def close(self) -> None:
        """Refuse further commands. Idempotent; what is in the queues is gone with the broker."""
        super().close()
        self._server.loop.close()


def _collection() -> Any:
    try:
        import mongomock
    except ModuleNotFoundError as error:
        hint = "the virtual broker needs mongomock: install mongoq-driver[testing] (pip install '.[testing]')"
        raise ModuleNotFoundError(hint, name="mongomock") from error
    client: Any = mongomock.MongoClient(tz_aware=True)
    return client["virtual"]["mongoq"]
