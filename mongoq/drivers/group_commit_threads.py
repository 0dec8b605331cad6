"""Group commit of threads: while a command is under way, callers gather; then one of them sends one command for all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pymongo.errors import AutoReconnect

from mongoq.core.command import MAX_SHARED, ReplyLost, Shared, copies
from mongoq.drivers import backend
from mongoq.drivers.signals import on_main_thread

if TYPE_CHECKING:
    from mongoq.drivers.performer_threads import ThreadPerformer


class _Batch:
    """Parts of several threads that go in one command, and what became of them.

    Attributes:
        shares: the parts, in the order of their arrival; the first thread sends the batch.
        answers: an answer or error for each part; empty until the reply is there.
        gone: places of threads that were interrupted and wait no longer.
        done: set when the answers are there. All threads of the batch sleep on it: an event for each of them would
            cost a switch between threads for each.
    """

    __slots__ = ("answers", "done", "gone", "shares")

    def __init__(self) -> None:
        self.shares: list[Shared[Any]] = []
        self.answers: Sequence[Any] = ()
        self.gone: set[int] = set()
        self.done = threading.Event()


class _Gathering:
    """The callers of one operation.

    Attributes:
        batch: the batch that callers still join; ``None`` when the next one begins another.
        turn: held while a command is under way.
    """

    __slots__ = ("__weakref__", "batch", "turn")

    def __init__(self) -> None:
        self.batch: _Batch | None = None
        self.turn = threading.Lock()


class ThreadGroupCommit:
    """Sends the shared commands of threads.

    There is no timer. A thread that finds no command under way sends at once and alone. The main thread sends its part
    alone as well, since a signal may interrupt it anywhere, and so does a thread that calls while it is already
    sending, for example a command listener.
    """

    def __init__(self, performer: ThreadPerformer, run: Callable[..., Any]) -> None:
        self._performer = performer
        self._run = run
        self.forget()
        backend.register(self)

    def forget(self) -> None:
        """Reset in a forked child: the waiting threads belong to the parent, and one may hold a lock."""
        self._lock = threading.Lock()  # guards what follows, and all batches
        # Forgotten with the last thread that waits or sends.
        self._gatherings: WeakValueDictionary[Hashable, _Gathering] = WeakValueDictionary()
        self._thread_state = threading.local()

    def share(self, shared: Shared[Any]) -> Any:
        """Return the answer for this caller's part of a command, which this thread or another one sends."""
        self._performer.check_open()
        if on_main_thread() or getattr(self._thread_state, "sharing", False):
            (answer,) = self._run(shared.send, [shared.entry])
        else:
            self._thread_state.sharing = True
            try:
                answer = self._join(shared)
            finally:
                self._thread_state.sharing = False
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _join(self, shared: Shared[Any]) -> Any:
        with self._lock:
            gathering = self._gatherings.get(shared.key)
            if gathering is None:
                gathering = self._gatherings[shared.key] = _Gathering()
            batch = gathering.batch
            if batch is None or len(batch.shares) == MAX_SHARED:
                batch = gathering.batch = _Batch()
            place = len(batch.shares)
            batch.shares.append(shared)
        try:
            if place:
                batch.done.wait()
            else:
                self._send(gathering, batch)
        except BaseException:  # this thread is made to end
            with self._lock:
                batch.gone.add(place)
                answers = batch.answers
            if answers:
                self._give_back(shared, answers[place])
            raise
        return batch.answers[place]

    def _send(self, gathering: _Gathering, batch: _Batch) -> None:
        """Send a batch as soon as the command before it is over."""
        answers: Sequence[Any] = ()
        try:
            with gathering.turn:
                with self._lock:  # from here on nobody joins
                    if gathering.batch is batch:
                        gathering.batch = None
                entries = [shared.entry for shared in batch.shares]
                # Not this thread's context: its timeouts are not the others'.
                answers = Context().run(self._run, batch.shares[0].send, entries)
        except Exception as error:
            answers = copies(error, len(batch.shares))
        finally:
            with self._lock:
                if gathering.batch is batch:
                    gathering.batch = None
                batch.answers = answers or copies(
                    ReplyLost(AutoReconnect("the thread that sent it has ended")), len(batch.shares)
                )
                gone = [(batch.shares[place], batch.answers[place]) for place in batch.gone]
            batch.done.set()
            for shared, answer in gone:
                self._give_back(shared, answer)

    def _give_back(self, shared: Shared[Any], answer: Any) -> None:
        """Give back what came for an interrupted thread."""
        if shared.undo is not None and answer is not None and not isinstance(answer, Exception):
            self._performer.undo_all([(shared, answer)])
