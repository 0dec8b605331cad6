"""Rest of waiters, in threads and on asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

from mongoq.core.command import WakeEvent
from mongoq.drivers.signals import on_main_thread

SIGNAL_CHECK_SECONDS = 1.0
"""Seconds after which the main thread looks whether a signal has come.

One that the system hands to another thread, or that comes just before the wait begins, does not end a wait of Python's.
"""


def rest(event: WakeEvent, seconds: float) -> None:
    """Block the thread until the event is set, at most ``seconds``.

    It waits on a plain lock: a signal handler may set this very event.
    """
    gate = threading.Lock()
    gate.acquire()

    def open_gate() -> None:
        with suppress(RuntimeError):  # two rang at once, and it is open
            gate.release()

    event.alarm = open_gate
    deadline = time.monotonic() + seconds
    longest = SIGNAL_CHECK_SECONDS if on_main_thread() else seconds  # signal handlers run between two waits
    try:
        while not event.was_set and (seconds_left := deadline - time.monotonic()) > 0:
            if gate.acquire(timeout=min(seconds_left, longest)):
                break
    finally:
        event.alarm = None


async def rest_aio(event: WakeEvent, seconds: float) -> None:
    """Suspend the task until the event is set, at most ``seconds``."""
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()

    def open_gate() -> None:
        if not gate.done():
            gate.set_result(None)

    event.alarm = open_gate
    timer = loop.call_later(seconds, open_gate)
    try:
        if not event.was_set:
            await gate
    finally:
        timer.cancel()
        event.alarm = None
