"""Events that wake a waiter: a driver waits on one, and a flow, or another thread, sets it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Waiter", "WakeEvent"]


class WakeEvent:
    """An event that wakes one waiter; it may be set before the waiter waits.

    Attributes:
        alarm: called when the event is set; installed by the driver while a caller waits.
        was_set: the event was set since the waiter last looked.
    """

    __slots__ = ("alarm", "was_set")

    def __init__(self) -> None:
        self.alarm: Callable[[], None] | None = None
        self.was_set = False

    def set(self) -> None:
        """Set the event and wake its waiter."""
        self.was_set = True
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            alarm()


class Waiter(WakeEvent):
    """One caller that waits for an item of a queue; its place in the ``WaitQueue``.

    Attributes:
        called: the waiter is to ask the server next.
        woken: the waiter was asleep when it was called.
        asking: the waiter has sent a claim, and has not reported yet that it found nothing.
        asleep: the waiter waits on the event.
    """

    __slots__ = ("asking", "asleep", "called", "woken")

    def __init__(self) -> None:
        super().__init__()
        self.called = self.woken = self.asking = self.asleep = False
