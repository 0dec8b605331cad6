"""Group commit on asyncio: callers wait in lanes, and tasks of the driver's send what they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from mongoq.protocol.lane import Lane, Ticket
from mongoq.protocol.request import Flow, Shared

__all__ = ["AioLanes"]

logger = logging.getLogger("mongoq.drive")

Waiter = asyncio.Future[Any]


class AioLanes:
    """Sends the batches of lanes.

    A caller's own task never sends: cancelled, it would take the others' command down. A caller who is cancelled
    leaves at once; an item that comes for it goes to the next who waits for one, or is given back.
    """

    def __init__(
        self,
        own: Callable[[Coroutine[Any, Any, None]], Any],
        run: Callable[[Flow[Any]], Coroutine[Any, Any, Any]],
        undo: Callable[[Any, Any], Coroutine[Any, Any, None]],
    ) -> None:
        self._own = own
        self._run = run
        self._undo = undo

    async def share(self, shared: Shared[Any], taken: list[Any]) -> Any:
        """Wait for this caller's part of a batch."""
        lane: Lane[Waiter] = shared.lane
        ticket = Ticket(shared, asyncio.get_running_loop().create_future())
        lane.waiting.append(ticket)
        if lane.is_free:
            lane.flying += 1
            self._own(self._fly(lane))
        try:
            told = await ticket.waiter
        except asyncio.CancelledError:
            if shared.undo is not None:
                taken.clear()
            if ticket.waiter.done() and not ticket.waiter.cancelled() and ticket.waiter.exception() is None:
                self._leave(lane, ticket, ticket.waiter.result())  # it came in the moment of the cancellation
            raise
        if shared.undo is not None:
            taken.append((shared, told))
        return told

    async def _fly(self, lane: Lane[Waiter]) -> None:
        """Send batches until nobody waits; who comes in the meantime goes with the next one."""
        batch: list[Ticket[Waiter]] = []
        try:
            while batch := lane.board(asyncio.Future.done):
                for ticket, told in zip(batch, await self._told(lane, batch), strict=True):
                    self._deliver(lane, ticket, told)
        finally:
            lane.flying -= 1
            for ticket in batch:
                ticket.waiter.cancel()  # nothing, unless this task was cancelled itself, at the end of the loop

    async def _told(self, lane: Lane[Waiter], batch: list[Ticket[Waiter]]) -> list[Any]:
        try:
            return list(await self._run(lane.send([ticket.shared.entry for ticket in batch])))
        except Exception as error:
            return [error] * len(batch)

    def _deliver(self, lane: Lane[Waiter], ticket: Ticket[Waiter], told: Any) -> None:
        if ticket.waiter.done():
            self._leave(lane, ticket, told)
        elif isinstance(told, Exception):
            ticket.waiter.set_exception(told)
        else:
            ticket.waiter.set_result(told)

    def _leave(self, lane: Lane[Waiter], ticket: Ticket[Waiter], told: Any) -> None:
        """Hand what came for a caller that has gone to the next who waits for it, or give it back."""
        if isinstance(told, Exception):
            logger.debug("a command whose caller was cancelled failed: %r", told)
        elif ticket.shared.undo is not None and told is not None:
            heir = lane.take_over(ticket.shared.kind, asyncio.Future.done)
            if heir is not None:
                heir.waiter.set_result(told)
            else:
                self._own(self._undo(ticket.shared, told))
