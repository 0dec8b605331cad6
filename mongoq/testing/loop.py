"""Event loop of a broker, for coroutine functions that a plain test runs."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Iterable
from contextvars import copy_context
from typing import Any

from mongoq.errors import ArgumentInvalid
from mongoq.worker.consumer import Consumer

__all__ = ["PrivateLoop"]


class PrivateLoop:
    """One loop for all runs, made at the first run, so that objects that a handler keeps between runs stay usable."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def check(self, consumers: Iterable[Consumer]) -> None:
        """Refuse to run coroutine functions in a thread where another loop runs.

        Raises:
            ArgumentInvalid: a handler is a coroutine function; the message says what to use.
        """
        if asyncio._get_running_loop() is None:
            return
        for one in consumers:
            if one.asynchronous:
                raise ArgumentInvalid(
                    "worker",
                    f"the handler of {one.name!r} is a coroutine function, and the test runs in an event loop already; "
                    "await the worker of an AsyncVirtualBroker there",
                )

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, in the context of the caller."""
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # no other loop is taken for it
            # A broker that is never closed would leave its loop open, and Python would warn about it.
            weakref.finalize(self, _let_go, self._runner, self._runner.get_loop())
        return self._runner.run(coroutine, context=copy_context())

    def close(self) -> None:
        """End the loop. Idempotent."""
        if self._runner is not None:
            self._runner.close()


def _let_go(runner: asyncio.Runner, loop: asyncio.AbstractEventLoop) -> None:
    """End the loop of a collected broker; another loop may be running in this thread. Idempotent."""
    if asyncio._get_running_loop() is None:
        runner.close()
    else:
        loop.close()  # without its remaining tasks: a loop cannot run inside another one
