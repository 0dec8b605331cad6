"""The driver for threads: runs flows on a PyMongo or mongomock collection."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, TypeVar

from mongoq.drive.backends import Backend, interruption
from mongoq.drive.disturbance import Disturbance
from mongoq.drive.shield import Shield
from mongoq.errors import BrokerClosed
from mongoq.model.clock import Clock
from mongoq.protocol.request import Command, Flow, Interruption, ReplyLost, Request, Wait

__all__ = ["ThreadDriver"]

T = TypeVar("T")
logger = logging.getLogger("mongoq.drive")


class ThreadDriver:
    """Performs the requests of a flow in the caller's thread.

    Commands that take something run shielded on the main thread, the only one that a signal interrupts: the
    command ends on a thread of its own, and what it took is given back before ``KeyboardInterrupt`` goes on. The
    same holds for an interrupt between the reply and the end of the flow.
    """

    asynchronous = False

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._disturbance = Disturbance(backend, clock)
        self._shield = Shield()
        self._closed = False

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; driver's errors that the flow did not handle come out as they are."""
        if self._closed:
            raise BrokerClosed
        taken: list[tuple[Command[Any], Any]] = []
        try:
            return self._run(flow, taken)
        except Exception:
            raise
        except BaseException:
            if taken:
                self._undo(*taken[-1])
            raise
        finally:
            flow.close()

    def _run(self, flow: Flow[T], taken: list[tuple[Command[Any], Any]]) -> T:
        try:
            request = next(flow)
            while True:
                try:
                    reply = self._perform(request, taken)
                except Exception as error:
                    request = flow.throw(self._translated(error))
                else:
                    request = flow.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except Interruption as unhandled:
            raise unhandled.cause from None

    def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow; in a thread nobody cancels it."""
        return self.run(flow)

    def close(self) -> None:
        """Refuse further flows, and end the shield's thread."""
        self._closed = True
        self._shield.close()

    def _translated(self, error: Exception) -> Exception:
        known = interruption(error)
        if isinstance(known, ReplyLost):
            self._disturbance.tell()
        return known or error

    def _perform(self, request: Request, taken: list[tuple[Command[Any], Any]]) -> Any:
        if isinstance(request, Wait):
            time.sleep(request.seconds)
            return None
        self._disturbance.look()
        if request.undo is None:
            return request.parse(self._send(request))
        if threading.current_thread() is threading.main_thread():
            reply = self._shield.run(lambda: self._send(request), lambda reply: self._undo(request, reply))
        else:
            reply = self._send(request)
        taken.append((request, reply))
        return request.parse(reply)

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
        except Exception:
            logger.exception("an item that an interrupted call had taken could not be given back")
