"""The driver for asyncio: runs flows on a PyMongo async or a Motor collection."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from mongoq.drive.backends import Backend
from mongoq.drive.disturbance import Disturbance
from mongoq.errors import BrokerClosed
from mongoq.model.clock import Clock
from mongoq.protocol.request import Command, Flow, Interruption, Request, Wait, hands_over

__all__ = ["AioDriver"]

T = TypeVar("T")
Taken = list[tuple[Command[Any], Any]]
logger = logging.getLogger("mongoq.drive")


class AioDriver:
    """Performs the requests of a flow on the running event loop.

    Every command runs in a task of the driver's: cancelling one inside PyMongo drops its connection, and a command
    that was sent may have happened. A cancelled caller leaves at once; its command ends, and what it took is given
    back.
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
        taken: Taken = []
        try:
            return await self._run(flow, taken)
        except BaseException as error:
            if taken and not hands_over(error):
                undoing = self._own(self._undo(*taken[-1]))
                if isinstance(error, Exception):
                    await asyncio.shield(undoing)
            raise
        finally:
            flow.close()

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a whole flow in a task of the driver's, so that it ends even when the caller is cancelled."""
        return await asyncio.shield(self._own(self.run(flow)))

    async def close(self) -> None:
        """Refuse further commands, those of waiting calls as well, and wait for what is under way."""
        self._closed = True
        await asyncio.sleep(0)  # callers that were cancelled a moment ago have not run since
        while self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, flow: Flow[T], taken: Taken) -> T:
        try:
            request = next(flow)
            while True:
                try:
                    reply = await self._perform(request, taken)
                except Exception as error:
                    request = flow.throw(self._disturbance.told(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Interruption as unhandled:
            raise unhandled.cause from None

    async def _perform(self, request: Request, taken: Taken) -> Any:
        if isinstance(request, Wait):
            await asyncio.sleep(request.seconds)
            return None
        if self._closed:
            raise BrokerClosed
        self._disturbance.look()
        reply = await self._sent(request, taken)
        if request.undo is not None:
            taken.append((request, reply))
        return request.parse(reply)

    async def _sent(self, command: Command[Any], taken: Taken) -> Any:
        """Send a command from a task of the driver's, which gives back what it took if the caller has gone."""
        waiter = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._answer(command, waiter))
        self._tasks.add(task)
        try:
            return await waiter
        except asyncio.CancelledError:
            if command.undo is not None:
                taken.clear()  # this command's own undo gives back all that the flow had taken
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._own(self._undo(command, waiter.result()))  # it came in the moment of the cancellation
            raise

    async def _answer(self, command: Command[Any], waiter: asyncio.Future[Any]) -> None:
        try:
            reply = await self._send(command)
            if waiter.cancelled():
                await self._undo(command, reply)
            else:
                waiter.set_result(reply)
        except Exception as error:
            if waiter.cancelled():
                logger.debug("a command whose caller was cancelled failed: %r", error)
            else:
                waiter.set_exception(error)
        finally:
            waiter.cancel()  # nothing, unless this task was cancelled itself, at the end of the loop
            self._tasks.discard(asyncio.current_task())

    async def _send(self, command: Command[Any]) -> Any:
        target = self._backend.targets[command.target]
        reply = getattr(target, command.method)(**self._backend.arguments(command.arguments))
        if inspect.isawaitable(reply):
            reply = await reply
        return await reply.to_list(None) if command.method in ("find", "aggregate") else reply

    async def _undo(self, command: Command[Any], reply: Any) -> None:
        """Give back what a command took for a caller that has gone."""
        try:
            back = command.undo(reply) if command.undo is not None else None
            if back is not None:
                await self._send(back)
        except Exception as error:
            logger.warning("an item that a failed or cancelled call had taken could not be given back: %r", error)
