"""Bells: what drivers rest on, and flows ring."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Waiter", "WakeEvent"]


class WakeEvent:
    """Something to rest on until it rings; it may ring before."""

    __slots__ = ("alarm", "rung")

    def __init__(self) -> None:
        self.alarm: Callable[[], None] | None = None
        self.rung = False

    def ring(self) -> None:
        """Wake who rests on it."""
        self.rung = True
        alarm, self.alarm = self.alarm, None
        if alarm is not None:
            alarm()


class Waiter(WakeEvent):
    """A waiter's place in a room.

    Attributes:
        called: it is to ask the server.
        woken: it was at rest when it was called.
        asking: it has asked, and has not said yet that there was nothing.
        asleep: it rests.
    """

    __slots__ = ("asking", "asleep", "called", "woken")

    def __init__(self) -> None:
        super().__init__()
        self.called = self.woken = self.asking = self.asleep = False
