"""Event loop and driver of virtual brokers: commands in memory end at once, so no task ever waits for one."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Iterable
from contextvars import copy_context
from typing import Any, TypeVar

from mongoq.drivers.aio.driver import AioDriver
from mongoq.drivers.sessions import Sessions
from mongoq.drivers.threads.driver import ThreadDriver
from mongoq.errors import ArgumentInvalid
from mongoq.protocol.flow import Flow
from mongoq.worker.consumer import Consumer

__all__ = ["PrivateLoop", "VirtualDriver"]

T = TypeVar("T")


class VirtualDriver(AioDriver):
    """Runs flows by the driver for threads, in the caller's task, in any event loop."""

    def __init__(self, threads: ThreadDriver) -> None:
        # Not the parent's __init__: this driver has no client, no loop and no counters of its own.
        self._threads = threads

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return self._threads.run(flow)

    async def run_shielded(self, flow: Flow[T]) -> T:
        """Run a flow to its end; no task can cancel it, because it never waits."""
        return self._threads.run(flow)

    @property
    def sessions(self) -> Sessions:
        """Sessions of the driver for threads; any use raises an error."""
        return self._threads.sessions

    async def close(self) -> None:
        """Refuse further commands. Idempotent."""
        self._threads.close()


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
