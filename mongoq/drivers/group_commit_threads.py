"""Group commit among threads: the first who waits sends for those who wait with it, and then hands over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from pymongo.errors import AutoReconnect

from mongoq.drivers import fork
from mongoq.drivers.signals import on_main_thread
from mongoq.protocol.flow.commands import Flow, ReplyLost, Shared
from mongoq.protocol.state.batcher import Batcher, Batchers, copies

__all__ = ["ThreadGroupCommit"]

logger = logging.getLogger("mongoq.drive")


class _Waiter:
    """A thread in a lane, asleep until it is told something, or is the one to send.

    Attributes:
        woken: set when there is something to do.
        told: what it is told, once there is something.
        leads: it is the one to send the next batch, or to say who does.
        gone: it was interrupted, and waits no more.
    """

    __slots__ = ("gone", "leads", "told", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.told: list[Any] = []
        self.leads = self.gone = False

    def tell(self, told: Any) -> None:
        self.told.append(told)
        self.woken.set()

    def lead(self) -> None:
        self.leads = True
        self.woken.set()


def _is_gone(waiter: _Waiter) -> bool:
    return waiter.gone


class ThreadGroupCommit:
    """Sends the batches of lanes.

    Nobody serves the others for longer than its own batch takes: who has its answer wakes the first of those who
    wait, and that one sends the next batch. The main thread sends its own part alone, since a signal may interrupt it
    anywhere. So does who calls while it is sending already, such as a listener to commands.
    """

    def __init__(
        self, lanes: Batchers, run: Callable[[Flow[Any]], Any], undo: Callable[[Shared[Any], Any], None]
    ) -> None:
        self._lanes = lanes
        self._run = run
        self._undo = undo
        self._lock = threading.Lock()
        self._here = threading.local()
        fork.attend(self)

    def forget(self) -> None:
        """Start afresh in a forked child: who waits here is the parent's, and may hold the lock."""
        self._lock = threading.Lock()
        self._here = threading.local()
        self._lanes.clear()

    def share(self, shared: Shared[Any], taken: list[Any]) -> Any:
        """Wait for this caller's part of a batch, or send it."""
        if on_main_thread() or getattr(self._here, "sharing", False):
            (told,) = self._run(shared.lane.send([shared.entry]))
        else:
            self._here.sharing = True
            try:
                told = self._told(shared)
            finally:
                self._here.sharing = False
        if isinstance(told, Exception):
            raise told
        if shared.undo is not None:
            taken.append((shared, told))
        return told

    def _told(self, shared: Shared[Any]) -> Any:
        lane: Batcher = shared.lane
        waiter = shared.waiter = _Waiter()
        with self._lock:
            lane.enter(shared, threading.get_ident)
            if lane.is_free:
                lane.flying += 1
                waiter.leads = True
        try:
            while not waiter.told:
                if waiter.leads:
                    self._lead(lane)
                else:
                    waiter.woken.wait()
        except BaseException:
            self._abandon(lane, shared)
            raise
        self._hand_over(lane, waiter)
        return waiter.told[0]

    def _lead(self, lane: Batcher) -> None:
        """Send the next batch."""
        with self._lock:
            batch = lane.board(_is_gone)
        told: list[Any] = []
        try:
            flow = lane.send([shared.entry for shared in batch])
            told = list(Context().run(self._run, flow))  # not this thread's: its timeouts are not the others'
        except Exception as error:
            told = copies(error, len(batch))
        finally:
            if len(told) != len(batch):  # this thread was made to end
                told = copies(ReplyLost(AutoReconnect("the thread that sent it has ended")), len(batch))
            self._deliver(lane, batch, told)

    def _deliver(self, lane: Batcher, batch: list[Shared[Any]], told: list[Any]) -> None:
        left: list[tuple[Shared[Any], Any]] = []
        with self._lock:
            lane.landed(batch)
            for shared, one in zip(batch, told, strict=True):
                if shared.waiter.gone:
                    left.append((shared, one))
                else:
                    shared.waiter.tell(one)
        for shared, one in left:
            self._leave(lane, shared, one)

    def _hand_over(self, lane: Batcher, waiter: _Waiter) -> None:
        """Let the first of those who wait lead, if this thread led."""
        if not waiter.leads:
            return
        with self._lock:
            waiter.leads = False
            heir = next((shared.waiter for shared in lane.waiting if not shared.waiter.gone), None)
            if heir is None:
                lane.flying -= 1
            else:
                heir.lead()

    def _abandon(self, lane: Batcher, shared: Shared[Any]) -> None:
        waiter: _Waiter = shared.waiter
        with self._lock:
            waiter.gone = True
            told = list(waiter.told)
        self._hand_over(lane, waiter)
        for one in told:
            self._leave(lane, shared, one)

    def _leave(self, lane: Batcher, shared: Shared[Any], told: Any) -> None:
        """Hand what came for a thread that has gone to the next who waits for it, or give it back."""
        if isinstance(told, Exception) or told is None or shared.undo is None:
            return
        with self._lock:
            heir = lane.take_over(shared.kind, _is_gone)
            if heir is not None:
                heir.waiter.tell(told)
        if heir is None:
            self._undo(shared, told)
