"""Jobs: the second argument of a handler, beside the payload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mongoq.data.arguments import Duration
from mongoq.data.item import Item, delivery_hash
from mongoq.data.outcomes import ResolvedOutcome
from mongoq.data.process import Local


class AsyncJob(Local):
    """A run as its handler sees it: ``async def handle(payload, job)``.

    Attributes:
        items: the items of the run, as they were reserved; one, unless the consumer takes batches.
        lost: an event that is set when the reservation of one of them is lost: the lease was over, because the process
            or the server stood still, and another worker has the item; or this worker has given the run up, after
            ``max_time`` or at its own end, when the grace was over. What the handler returns is ignored then, so it may
            as well stop. ``job.lost.is_set()``.
        worker: name of the worker, as in ``broker.workers()``.
        returned: what the handler has returned, for context managers of ``around`` at their end; ``None`` before, and
            after an exception. The items are settled after that: an outcome such as ``Retry`` counts. If a result
            cannot be applied, it is the exception that the run fails with; in a batch the entry of the item.
    """

    _elsewhere = "it belongs to the run of its handler; hand on job.item, job.items or payloads, which can be pickled"

    def __init__(
        self,
        queue: Any,
        items: Sequence[Item[Any]],
        extended: Callable[[Iterable[Item[Any]]], None] | None = None,
        *,
        name: str | None = None,
        gone: bool = False,
        worker: str = "",
    ) -> None:
        self._queue = queue
        self._gone = gone
        self._name: str = name or queue.name
        self._extended = extended
        self.items = tuple(items)
        self.worker = worker
        self.returned: Any = None
        self._outcomes: list[ResolvedOutcome] | None = None

    @property
    def lost(self) -> asyncio.Event:
        """The event of a lost reservation."""
        # Most handlers never look at it, and an event with its lock takes most of the time of making a job.
        event = self.__dict__.get("_lost")
        if event is None:
            event = self.__dict__.setdefault("_lost", asyncio.Event())  # atomic: another thread may set the event
        return event  # type: ignore[no-any-return]

    @property
    def item(self) -> Item[Any]:
        """The item; of a batch the first one."""
        return self.items[0]

    @property
    def consumer(self) -> str:
        """Name of the consumer: the stage of a pipeline, or the queue."""
        return self._name

    @property
    def delivery_hash(self) -> str:
        """The SHA-256 of the queue, or the pipeline's stage, and the ids of the items, as 64 hex digits.

        The same in each run of the same items: for what happens outside of this queue, as the key that tells the other
        side that this was there before. An item that comes to a stage again, moved round a loop, has another one.
        """
        return delivery_hash(self._name, self.items)

    def hash_of(self, item: Item[Any]) -> str:
        """Return the delivery hash of one item of a batch: the next attempt may be in another batch."""
        return delivery_hash(self._name, [item])

    async def extend(self, *, lease: Duration | None = None) -> None:
        """Let the lease end so long from now (``update``); the worker does so by itself while the handler runs.

        For a handler that is about to block the process, whose worker cannot extend then. An item that is run at most
        once has left its queue before, and has no lease: nothing is done then.

        Args:
            lease: how long, a ``timedelta`` or seconds; default the queue's.

        Raises:
            BatchIncomplete: an item was lost; its ``failed`` tells the ``ReservationLost``.
        """
        if self._gone:
            return
        extended = await self._queue.extend_many(self.items, lease=lease)
        if self._extended is not None:
            self._extended(extended)
