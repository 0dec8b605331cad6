"""Group commit on asyncio: callers wait in lanes, and tasks of the driver's send what they share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from functools import partial
from typing import Any

from mongoq.errors import BrokerClosed
from mongoq.protocol.lane import Lane, Ticket, copies
from mongoq.protocol.request import Flow, Shared

__all__ = ["ABREAST", "AioLanes"]

logger = logging.getLogger("mongoq.drive")

Waiter = asyncio.Future[Any]

ABREAST = 2
"""Batches of pushes under way at a time: while the server writes one, the loop makes the other. Three are no faster."""


class AioLanes:
    """Sends the batches of lanes.

    A caller's own task never sends: cancelled, it would take the others' command down. A caller who is cancelled
    leaves at once; an item that comes for it goes to the next who waits for one, or is given back.
    """

    def __init__(
        self,
        own: Callable[..., Any],
        run: Callable[[Flow[Any]], Coroutine[Any, Any, Any]],
        undo: Callable[[Any, Any], Coroutine[Any, Any, None]],
    ) -> None:
        self._own = own
        self._run = run
        self._undo = undo

    def enter(self, shared: Shared[Any]) -> Waiter:
        """Let a caller wait for its part of a batch; the answer is what it is told."""
        lane: Lane[Waiter] = shared.lane
        waiter = asyncio.get_running_loop().create_future()
        lane.waiting.append(Ticket(shared, waiter))
        self._launch(lane)
        return waiter

    def _launch(self, lane: Lane[Waiter]) -> None:
        """Have the next batch sent by a task, in a context of its own: a caller's timeouts are not the others'."""
        if lane.waiting and lane.is_free:
            lane.flying += 1
            self._own(self._fly(lane), Context()).add_done_callback(partial(self._landed, lane))

    def _landed(self, lane: Lane[Waiter], flight: asyncio.Task[None]) -> None:
        """Go on with who came at the last moment; when the driver gives up, or the loop ends, nobody is left behind."""
        lane.flying -= 1
        if flight.cancelled():
            _strand(lane.waiting)
            lane.waiting.clear()
        self._launch(lane)

    def leave(self, shared: Shared[Any], waiter: Waiter) -> None:
        """Let a caller go that was cancelled; what came for it in that very moment is not lost."""
        shared.entry = None  # it may be large, and wait for long
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self._hand_on(shared, waiter.result())

    async def _fly(self, lane: Lane[Waiter]) -> None:
        """Send batches until nobody waits; who comes in the meantime goes with the next one."""
        batch: list[Ticket[Waiter]] = []
        try:
            while batch := lane.board(asyncio.Future.done):
                if lane.waiting:
                    self._launch(lane)
                for ticket, told in zip(batch, await self._told(lane, batch), strict=True):
                    self._deliver(ticket, told)
                if len(batch) == 1:
                    await asyncio.sleep(0)  # a lone caller who goes on at once has come back by then
        finally:
            _strand(batch)  # nobody, unless this task was cancelled

    async def _told(self, lane: Lane[Waiter], batch: list[Ticket[Waiter]]) -> list[Any]:
        try:
            return list(await self._run(lane.send([ticket.shared.entry for ticket in batch])))
        except Exception as error:
            return list(copies(error, len(batch)))
        finally:
            lane.landed(batch)

    def _deliver(self, ticket: Ticket[Waiter], told: Any) -> None:
        if ticket.waiter.done():
            self._hand_on(ticket.shared, told)
        elif isinstance(told, Exception):
            ticket.waiter.set_exception(told)
        else:
            ticket.waiter.set_result(told)

    def _hand_on(self, shared: Shared[Any], told: Any) -> None:
        """Hand what came for a caller that has gone to the next who waits for it, or give it back."""
        if isinstance(told, Exception):
            logger.debug("a command whose caller was cancelled failed: %r", told)
        elif shared.undo is not None and told is not None:
            heir = shared.lane.take_over(shared.kind, asyncio.Future.done)
            if heir is not None:
                heir.waiter.set_result(told)
            else:
                self._own(self._undo(shared, told))


def _strand(tickets: Iterable[Ticket[Waiter]]) -> None:
    for ticket in tickets:
        if not ticket.waiter.done():
            ticket.waiter.set_exception(BrokerClosed())
