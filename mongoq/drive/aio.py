"""The driver for asyncio: runs flows on a PyMongo async or a Motor collection."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from mongoq.drive.backends import Backend, interruption
from mongoq.drive.disturbance import Disturbance
from mongoq.errors import BrokerClosed
from mongoq.model.clock import Clock
from mongoq.protocol.request import Command, Flow, Interruption, ReplyLost, Request, Wait

__all__ = ["AioDriver"]

T = TypeVar("T")
logger = logging.getLogger("mongoq.drive")


class AioDriver:
    """Performs the requests of a flow on the running event loop.

    Every command runs in a task of the driver's: cancelling one inside PyMongo drops its connection, and a command
    that was sent may have happened. A cancelled caller leaves at once; its command ends, and what it took is
    given back.
    """

    asynchronous = True

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._disturbance = Disturbance(backend, clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; driver's errors that the flow did not handle come out as they are."""
        if self._closed:
            raise BrokerClosed
        try:
            request = next(flow)
            while True:
                try:
                    reply = await self._perform(request)
                except Exception as error:
                    request = flow.throw(self._translated(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Interruption as unhandled:
            raise unhandled.cause from None
        finally:
            flow.close()

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a whole flow in a task of the driver's, so that it ends even when the caller is cancelled."""
        return await asyncio.shield(self._own(self.run(flow)))

    async def close(self) -> None:
        """Refuse further flows, and wait for what cancelled callers left behind."""
        self._closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _translated(self, error: Exception) -> Exception:
        known = interruption(error)
        if isinstance(known, ReplyLost):
            self._disturbance.tell()
        return known or error

    async def _perform(self, request: Request) -> Any:
        if isinstance(request, Wait):
            await asyncio.sleep(request.seconds)
            return None
        self._disturbance.look()
        task = self._own(self._send(request))
        try:
            reply = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._own(self._give_back(request, task))
            raise
        return request.parse(reply)

    async def _send(self, command: Command[Any]) -> Any:
        target = self._backend.targets[command.target]
        reply = getattr(target, command.method)(**self._backend.arguments(command.arguments))
        if inspect.isawaitable(reply):
            reply = await reply
        return await reply.to_list(None) if command.method in ("find", "aggregate") else reply

    async def _give_back(self, command: Command[Any], task: asyncio.Task[Any]) -> None:
        """Undo what a command took for a caller that has gone."""
        try:
            reply = await task
            back = command.undo(reply) if command.undo is not None else None
            if back is not None:
                await self._send(back)
        except Exception as error:
            log = logger.debug if command.undo is None else logger.warning
            log("a command whose caller was cancelled failed, or its item could not be given back: %r", error)
