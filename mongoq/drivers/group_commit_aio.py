"""Group commit on asyncio: callers wait in batchers, and tasks of the driver's send what they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Any

from mongoq.drivers.performer_aio import AioPerformer
from mongoq.errors import BrokerClosed
from mongoq.protocol.flow import Flow, Shared
from mongoq.protocol.state.batcher import Batcher, Batchers, copies

logger = logging.getLogger("mongoq.drive")

Waiter = asyncio.Future[Any]


class AioGroupCommit:
    """Sends the batches of batchers.

    The task of a caller never sends for others: its cancellation would end their command. A cancelled caller leaves
    at once; an item that arrives for it goes to the next waiting caller, or is given back.
    """

    def __init__(
        self, batchers: Batchers, performer: AioPerformer, run: Callable[[Flow[Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self._performer = performer
        self._run = run
        batchers.divides = True

    def share(self, shared: Shared[Any]) -> Waiter:
        """Add a caller to the next batch, and return the future of its part.

        The caller awaits the future itself: a shared request costs neither a task nor another coroutine.
        """
        self._performer.check_open()
        assert self._performer.loop is not None
        batcher: Batcher = shared.batcher
        waiter: Waiter = self._performer.loop.create_future()
        shared.waiter = waiter
        batcher.waiting.append(shared)
        self._start_task(batcher)
        return waiter

    def _start_task(self, batcher: Batcher) -> None:
        """Have the next batch sent by a task, in a context of its own: a caller's timeouts are not the others'."""
        if batcher.waiting and batcher.is_free:
            batcher.batches_in_flight += 1
            task = self._performer.start_task(self._send_batches(batcher), Context())
            task.add_done_callback(partial(self._finish_task, batcher))

    def _finish_task(self, batcher: Batcher, task: asyncio.Task[None]) -> None:
        """Send late arrivals; after a cancelled task (end of the driver or the loop), fail the waiting callers."""
        batcher.batches_in_flight -= 1
        if task.cancelled():
            _fail_waiting(batcher.waiting)
            batcher.waiting.clear()
        self._start_task(batcher)

    def leave(self, shared: Shared[Any]) -> None:
        """Let a caller go that was cancelled; what came for it in that very moment is not lost."""
        shared.entry = None  # it may be large, and wait for long
        waiter: Waiter = shared.waiter
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._hand_on(shared, waiter.result())

    async def _send_batches(self, batcher: Batcher) -> None:
        """Send batches until no caller waits; callers that arrive meanwhile form the next batch."""
        batch: list[Shared[Any]] = []
        try:
            while batch := batcher.next_batch(asyncio.Future.done):
                if batcher.waiting:
                    self._start_task(batcher)
                answers = await self._send_batch(batcher, batch)
                for shared, answer in zip(batch, answers, strict=True):
                    waiter: Waiter = shared.waiter
                    if waiter.done():
                        self._hand_on(shared, answer)
                    elif isinstance(answer, Exception):
                        waiter.set_exception(answer)
                    else:
                        waiter.set_result(answer)
                if len(batch) == 1:
                    await asyncio.sleep(0)  # a lone caller who goes on at once has come back by then
        finally:
            _fail_waiting(batch)  # nobody, unless this task was cancelled

    async def _send_batch(self, batcher: Batcher, batch: list[Shared[Any]]) -> list[Any]:
        try:
            return list(await self._run(batcher.send([shared.entry for shared in batch])))
        except Exception as error:
            return list(copies(error, len(batch)))
        finally:
            batcher.finish(batch)

    def _hand_on(self, shared: Shared[Any], answer: Any) -> None:
        """Hand the item of a cancelled caller to the next waiting caller of its kind, or give it back."""
        if isinstance(answer, Exception):
            logger.debug("a command whose caller was cancelled failed: %r", answer)
        elif shared.undo is not None and answer is not None:
            heir = shared.batcher.reassign(shared.kind, asyncio.Future.done)
            if heir is not None:
                heir.waiter.set_result(answer)
            else:
                self._performer.undo(shared, answer)


def _fail_waiting(waiting: Iterable[Shared[Any]]) -> None:
    for shared in waiting:
        if not (shared.waiter.done() or shared.waiter.get_loop().is_closed()):
            shared.waiter.set_exception(BrokerClosed())
