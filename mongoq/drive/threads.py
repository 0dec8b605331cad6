"""The driver for threads: runs flows on a PyMongo or mongomock collection."""

from __future__ import annotations

import logging
import time
from typing import Any, TypeVar

from mongoq.drive.backends import Backend
from mongoq.drive.deferral import Deferral, on_main_thread
from mongoq.drive.disturbance import Disturbance
from mongoq.errors import BrokerClosed
from mongoq.model.clock import Clock
from mongoq.protocol.request import Command, Flow, Interruption, Request, Wait, hands_over

__all__ = ["ThreadDriver"]

T = TypeVar("T")
Taken = list[tuple[Command[Any], Any]]
logger = logging.getLogger("mongoq.drive")


class ThreadDriver:
    """Performs the requests of a flow in the caller's thread.

    What a command took is given back when the flow does not end well. On the main thread, the only one that a signal
    interrupts, handlers of signals wait for the reply: PyMongo, interrupted within its pool, may leave a lock locked.
    """

    asynchronous = False

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._disturbance = Disturbance(backend, clock)
        self._closed = False

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; driver's errors that the flow did not handle come out as they are."""
        if self._closed:
            raise BrokerClosed
        taken: Taken = []
        try:
            return self._run(flow, taken)
        except BaseException as error:
            if taken and not hands_over(error):
                self._undo(*taken[-1])
            raise
        finally:
            flow.close()

    def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow; in a thread nobody cancels it."""
        return self.run(flow)

    def close(self) -> None:
        """Refuse further commands, those of waiting calls as well."""
        self._closed = True

    def _run(self, flow: Flow[T], taken: Taken) -> T:
        try:
            request = next(flow)
            while True:
                try:
                    reply = self._perform(request, taken)
                except Exception as error:
                    request = flow.throw(self._disturbance.told(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Interruption as unhandled:
            raise unhandled.cause from None

    def _perform(self, request: Request, taken: Taken) -> Any:
        if isinstance(request, Wait):
            time.sleep(request.seconds)
            return None
        if self._closed:
            raise BrokerClosed
        self._disturbance.look()
        if not on_main_thread():
            return request.parse(self._kept(request, taken))
        with Deferral():
            reply = self._kept(request, taken)
        return request.parse(reply)

    def _kept(self, command: Command[Any], taken: Taken) -> Any:
        reply = self._send(command)
        if command.undo is not None:
            taken.append((command, reply))
        return reply

    def _send(self, command: Command[Any]) -> Any:
        target = self._backend.targets[command.target]
        reply = getattr(target, command.method)(**self._backend.arguments(command.arguments))
        return list(reply) if command.method in ("find", "aggregate") else reply

    def _undo(self, command: Command[Any], reply: Any) -> None:
        back = command.undo(reply) if command.undo is not None else None
        if back is None:
            return
        try:
            self._send(back)
        except Exception as error:
            logger.warning("an item that a failed call had taken could not be given back: %r", error)
