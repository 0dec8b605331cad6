"""Group commit of threads: the first waiting thread leads, sends one batch for all waiters, and passes the lead on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

from pymongo.errors import AutoReconnect

from mongoq.drivers import backend
from mongoq.drivers.performer_threads import ThreadPerformer
from mongoq.drivers.signals import on_main_thread
from mongoq.protocol.flow import Flow, ReplyLost, Shared
from mongoq.protocol.state.batcher import Batcher, Batchers, copies

logger = logging.getLogger("mongoq.drive")


class _Waiter:
    """Thread that waits for its part of a batch. It sleeps until it gets its answer or becomes the leader.

    Attributes:
        woken: event, set when the thread has an answer or the lead.
        answer: list with the thread's answer or error; empty until the batch is answered.
        is_leader: True while the thread has to send the next batch or pass the lead on.
        is_gone: True after the thread was interrupted; it no longer waits.
    """

    __slots__ = ("answer", "is_gone", "is_leader", "woken")

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.answer: list[Any] = []
        self.is_leader = self.is_gone = False

    def answer_with(self, answer: Any) -> None:
        self.answer.append(answer)
        self.woken.set()

    def lead(self) -> None:
        self.is_leader = True
        self.woken.set()


def _is_gone(waiter: _Waiter) -> bool:
    return waiter.is_gone


class ThreadGroupCommit:
    """Sends the batches of batchers.

    A thread serves the others for no longer than its own batch takes: with its answer, the leader wakes the first
    waiting thread, which sends the next batch. The main thread sends its own part alone, since a signal may interrupt
    it anywhere. So does a thread that calls while it is already sending, for example a command listener.
    """

    def __init__(self, batchers: Batchers, performer: ThreadPerformer, run: Callable[[Flow[Any]], Any]) -> None:
        self._batchers = batchers
        self._performer = performer
        self._run = run
        self._lock = threading.Lock()
        self._thread_state = threading.local()
        backend.register(self)

    def forget(self) -> None:
        """Reset in a forked child: the waiting threads belong to the parent, and one may hold the lock."""
        self._lock = threading.Lock()
        self._thread_state = threading.local()
        self._batchers.clear()

    def share(self, shared: Shared[Any]) -> Any:
        """Wait for this caller's part of a batch, or send it."""
        self._performer.check_open()
        if on_main_thread() or getattr(self._thread_state, "sharing", False):
            (answer,) = self._run(shared.batcher.send([shared.entry]))
        else:
            self._thread_state.sharing = True
            try:
                answer = self._wait_for_answer(shared)
            finally:
                self._thread_state.sharing = False
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _wait_for_answer(self, shared: Shared[Any]) -> Any:
        batcher: Batcher = shared.batcher
        waiter = shared.waiter = _Waiter()
        with self._lock:
            batcher.waiting.append(shared)
            if batcher.is_free:
                batcher.batches_in_flight += 1
                waiter.is_leader = True
        try:
            while not waiter.answer:
                if waiter.is_leader:
                    self._send_batch(batcher)
                else:
                    waiter.woken.wait()
        except BaseException:
            self._abandon(batcher, shared)
            raise
        self._hand_over(batcher, waiter)
        return waiter.answer[0]

    def _send_batch(self, batcher: Batcher) -> None:
        """Send the next batch."""
        with self._lock:
            batch = batcher.next_batch(_is_gone)
        answer: list[Any] = []
        try:
            flow = batcher.send([shared.entry for shared in batch])
            answer = list(Context().run(self._run, flow))  # not this thread's: its timeouts are not the others'
        except Exception as error:
            answer = copies(error, len(batch))
        finally:
            if len(answer) != len(batch):  # this thread was made to end
                answer = copies(ReplyLost(AutoReconnect("the thread that sent it has ended")), len(batch))
            self._deliver(batcher, batch, answer)

    def _deliver(self, batcher: Batcher, batch: list[Shared[Any]], answer: list[Any]) -> None:
        abandoned: list[tuple[Shared[Any], Any]] = []
        with self._lock:
            batcher.finish(batch)
            for shared, reply in zip(batch, answer, strict=True):
                if shared.waiter.is_gone:
                    abandoned.append((shared, reply))
                else:
                    shared.waiter.answer_with(reply)
        for shared, reply in abandoned:
            self._hand_on(batcher, shared, reply)

    def _hand_over(self, batcher: Batcher, waiter: _Waiter) -> None:
        """Pass the lead to the first waiting thread, if this thread led."""
        if not waiter.is_leader:
            return
        with self._lock:
            waiter.is_leader = False
            heir = next((shared.waiter for shared in batcher.waiting if not shared.waiter.is_gone), None)
            if heir is None:
                batcher.batches_in_flight -= 1
            else:
                heir.lead()

    def _abandon(self, batcher: Batcher, shared: Shared[Any]) -> None:
        waiter: _Waiter = shared.waiter
        with self._lock:
            waiter.is_gone = True
            answer = list(waiter.answer)
        self._hand_over(batcher, waiter)
        for reply in answer:
            self._hand_on(batcher, shared, reply)

    def _hand_on(self, batcher: Batcher, shared: Shared[Any], answer: Any) -> None:
        """Hand the item of an interrupted thread to the next waiting thread of its kind, or give it back."""
        if isinstance(answer, Exception) or answer is None or shared.undo is None:
            return
        with self._lock:
            heir = batcher.reassign(shared.kind, _is_gone)
            if heir is not None:
                heir.waiter.answer_with(answer)
        if heir is None:
            self._performer.undo(shared, answer)
