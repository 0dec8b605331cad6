"""Coordinator of a worker: the state that all its consumers share. It decides and does no I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from mongoq.core.command import WakeEvent
from mongoq.core.state.wait_queue import WaiterRegistry
from mongoq.data.encoding.error_text import spoken
from mongoq.data.item import Item
from mongoq.data.log_fields import log_fields
from mongoq.data.outcomes import Failed, ResolvedOutcome
from mongoq.data.process import dice
from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right, is_refused_user
from mongoq.errors import BrokerClosed, CollectionUnsuitable
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer, LogErrors
from mongoq.worker.failure_log import hide_text, log_failure
from mongoq.worker.outcome_resolver import error_kind

logger = logging.getLogger("mongoq.worker")

POLL_SECONDS = 1.0
"""Seconds after which a loop checks its state again, even without a wake-up."""
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 1.0
"""Seconds of rest after a server error, at first and at most."""
MAX_EXCLUSIVE_SECONDS = 10.0
"""Seconds for which one consumer may keep the others paused."""
QUIET_WAIT_SECONDS = 2.0
"""Seconds for which a consumer waits at first for the running calls of the others to end."""


@dataclass(slots=True)
class _Outage:
    """Failure of one kind of command, from the first error to the next success."""

    since: float
    kinds: set[type[Exception]] = field(default_factory=set)
    pause: float = MIN_BACKOFF_SECONDS


class _ConsumerLoop(Protocol):
    backlog: Backlog
    consumer: Consumer
    halted: tuple[Item[Any], BaseException | str | None] | None


class Coordinator:
    """State that all consumers of a worker share.

    Attributes:
        worker: name of the worker, as in ``broker.workers()``.
        log_errors: what logs say of an error: its ``"message"``, or its ``"type"`` alone.
        loops: consumer loops at work; set once by the engine.
        registry: registry of the waiters for items in this process, woken when a consumer must stop waiting.
        emptied: event, set when a consumer holds nothing any more.
        changed: event, set when the worker's main loop has to check its state.
        settled: number of items settled so far, by all consumers.
        halted: True once the worker no longer waits for its calls to end.
        quiet_wait: seconds for which an exclusive consumer waits for the others; doubles when it waited in vain.
        failure: error that stops the worker, the first one; ``None`` while it can go on.
    """

    def __init__(self, registry: WaiterRegistry, worker: str = "", *, log_errors: LogErrors = "message") -> None:
        self.worker = worker
        self.log_errors: LogErrors = log_errors
        self.loops: Sequence[_ConsumerLoop] = ()
        self.registry = registry
        self.emptied, self.changed = WakeEvent(), WakeEvent()
        self.settled = 0
        self.halted = False
        self.failure: BaseException | None = None
        self._lock = Lock()
        self._exclusive: Consumer | None = None
        self._exclusive_since = self._others_until = float("-inf")
        self.quiet_wait = QUIET_WAIT_SECONDS
        self._outages: dict[str, _Outage] = {}
        self._succeeded: set[str] = set()

    def holds_anything(self) -> bool:
        """Return whether any consumer holds an item, or still runs a lost one."""
        return any(loop.backlog.is_at_work for loop in self.loops)

    def is_at_work(self) -> bool:
        """Return whether any consumer holds an item, or may be about to."""
        return self.holds_anything() or any(loop.backlog.claiming for loop in self.loops)

    # --- logs and failures -----------------------------------------------------------------------

    def log(
        self,
        level: int,
        text: str,
        *words: object,
        item: Item[Any] | None = None,
        queue: str | None = None,
        duration: float | None = None,
    ) -> None:
        """Log a line with the fields of an item or a queue, and this worker's name; errors among the words are hidden.

        What is shown of an error follows ``log_errors``.
        """
        shown = [self.hide(word) if isinstance(word, BaseException) else word for word in words]
        logger.log(level, text, *shown, extra=log_fields(item, queue=queue, worker=self.worker, duration=duration))

    def hide(self, error: BaseException) -> object:
        """Return what a log shows of an error."""
        return hide_text(error, self.log_errors)

    def report_failure(
        self,
        consumer: Consumer,
        item: Item[Any],
        outcome: ResolvedOutcome,
        *,
        traced: bool = True,
        duration: float | None = None,
    ) -> None:
        """Log the outcome of an item if it is a failure, and stop the consumer if the item has no queue to go to."""
        if not isinstance(outcome, Failed):
            return
        own: dict[str, Any] = {"worker": self.worker, "log_errors": self.log_errors}
        own |= {"counted": outcome.counted, "gone": consumer.pops, "traced": traced, "duration": duration}
        log_failure(logger, consumer.context, item, outcome, consumer.title, **own)
        if not outcome.halts:
            return
        stage = consumer.stage  # a stage may take items from several queues
        loops = [loop for loop in self.loops if loop.consumer is consumer or (stage and loop.consumer.stage == stage)]
        if all(loop.halted for loop in loops):
            return
        words = consumer.title, item.id, item.queue, error_kind(outcome.error)
        self.log(logging.ERROR, "%s stops: item %s of queue %r has failed for good: %s", *words, item=item)
        for loop in loops:
            loop.halted = loop.halted or (item, outcome.error)
            loop.backlog.close()
        self.changed.set()

    # --- exclusive runs --------------------------------------------------------------------------

    def is_paused(self, consumer: Consumer) -> bool:
        """Return whether a consumer has to pause, because another one has the worker to itself."""
        alone = self._exclusive
        return alone is not None and alone is not consumer

    def pause_others(self, consumer: Consumer) -> bool:
        """Give the worker to one consumer, unless another one has it; all waiting items are released."""
        with self._lock:
            if self._exclusive is not None:
                return False
            self._exclusive, self._exclusive_since = consumer, time.monotonic()
        for loop in self.loops:
            loop.backlog.release_waiting()
        self.registry.wake()
        return True

    def resume_others(self, *, in_vain: bool) -> None:
        """Let the other consumers work again, for at least as long as they had to wait.

        If their calls ran for so long that the exclusive consumer waited ``in_vain``, it waits twice as long next time.
        """
        with self._lock:
            now = time.monotonic()
            waited = now - self._exclusive_since
            self._exclusive, self._others_until = None, max(self._others_until, now + waited * (2 if in_vain else 1))
            self.quiet_wait = self.quiet_wait * 2 if in_vain else QUIET_WAIT_SECONDS
        for loop in self.loops:
            loop.backlog.fetch_event.set()

    def is_turn_of_others(self) -> bool:
        """Return whether the other consumers have to have their turn."""
        now = time.monotonic()
        return now < self._others_until or (
            self._exclusive is not None and now > self._exclusive_since + MAX_EXCLUSIVE_SECONDS
        )

    # --- the server ------------------------------------------------------------------------------

    def report_error(self, what: str, error: Exception) -> float | None:
        """Record a server error; returns the seconds to rest, or ``None`` if another try is useless.

        Until ``report_recovery``, each error type is logged once per ``what``: a driver that keeps looking for a
        server raises two or three types by turns. A refused user is an error to end with if no such command has ever
        succeeded; else the right may come back, as after a change of password.
        """
        never_allowed = is_refused_user(error) and what not in self._succeeded
        if never_allowed or isinstance(error, BrokerClosed | CollectionUnsuitable):
            self.fail(error)
            return None
        with self._lock:
            outage = self._outages.setdefault(what, _Outage(time.monotonic()))
            # A loop that is left behind at the end does not try again.
            if type(error) not in outage.kinds and not self.halted:
                outage.kinds.add(type(error))
                code, text = getattr(error, "code", None), type(error).__name__
                if self.log_errors == "message":  # a server's own message may quote payloads
                    text = spoken(error) if code is None else f"{text}, code {code}"
                    if code == UNAUTHORIZED_CODE:
                        text += f": the server {describe_missing_right(error)}"
                line = "the server does not %s as it should, and the worker tries again: %s"
                self.log(logging.WARNING, line, what, text)
            pause, outage.pause = outage.pause, min(outage.pause * 2, MAX_BACKOFF_SECONDS)
        # Jitter, so that the loops of many workers do not come back to a recovered server together.
        return pause * dice.uniform(0.5, 1.0)

    @property
    def is_cut_off(self) -> bool:
        """True after the broker was closed or its user refused: nothing can be settled any more."""
        failure = self.failure
        return isinstance(failure, BrokerClosed) or (failure is not None and is_refused_user(failure))

    def fail(self, error: BaseException) -> None:
        """Record an error with which the worker cannot go on; the first one is kept."""
        self.failure = self.failure or error
        self.changed.set()

    def describe_outages(self) -> list[str]:
        """Return the kinds of commands that fail at the moment, a sentence each."""
        with self._lock:
            now = time.monotonic()
            return [
                f"the server does not {what} as it should, for {now - outage.since:.0f} s: "
                + ", ".join(sorted(kind.__name__ for kind in outage.kinds))
                for what, outage in self._outages.items()
            ]

    def report_recovery(self, what: str) -> None:
        """Record that commands of this kind succeed, or do so again."""
        self._succeeded.add(what)
        if not self._outages:
            return
        with self._lock:
            outage = self._outages.pop(what, None)
        if outage is not None:
            seconds = time.monotonic() - outage.since
            self.log(logging.WARNING, "the server does %s again, after %.1f s", what, seconds, duration=seconds)
