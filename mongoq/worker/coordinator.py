"""Coordinator of a worker: the state that all its consumers share. It decides and does no I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from mongoq.drivers.errors import UNAUTHORIZED_CODE, describe_missing_right, is_refused_user
from mongoq.errors import BrokerClosed, CollectionUnsuitable
from mongoq.model.encoding.error_text import spoken
from mongoq.model.item import Item
from mongoq.model.log_fields import log_fields
from mongoq.model.process import dice
from mongoq.protocol.flow import WakeEvent
from mongoq.protocol.state.wait_queue import WaiterRegistry
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer, LogErrors
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

    def halt(self, consumer: Consumer, item: Item[Any], error: BaseException | str | None) -> None:
        """Stop a consumer, and the others of its stage: an item has failed for good and has no queue to go to."""
        stage = consumer.stage  # a stage may take items from several queues
        loops = [loop for loop in self.loops if loop.consumer is consumer or (stage and loop.consumer.stage == stage)]
        if all(loop.halted for loop in loops):
            return
        words = consumer.title, item.id, item.queue, error_kind(error)
        fields = log_fields(item, worker=self.worker)
        logger.error("%s stops: item %s of queue %r has failed for good: %s", *words, extra=fields)
        for loop in loops:
            loop.halted = loop.halted or (item, error)
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
                text = _error_text(error) if self.log_errors == "message" else type(error).__name__
                logger.warning(
                    "the server does not %s as it should, and the worker tries again: %s",
                    *(what, text),
                    extra=log_fields(worker=self.worker),
                )
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
            outages = [(what, time.monotonic() - one.since, set(one.kinds)) for what, one in self._outages.items()]
        return [
            f"the server does not {what} as it should, for {seconds:.0f} s: {', '.join(sorted(map(_kind_name, kinds)))}"
            for what, seconds, kinds in outages
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
            fields = log_fields(worker=self.worker, duration=seconds)
            logger.warning("the server does %s again, after %.1f s", what, seconds, extra=fields)


def _kind_name(kind: type[Exception]) -> str:
    return kind.__name__


def _error_text(error: Exception) -> str:
    """Return the log text of a server error: its code, since a server's own message may quote payloads."""
    code = getattr(error, "code", None)
    if code is None:
        return spoken(error)
    right = f": the server {describe_missing_right(error)}" if code == UNAUTHORIZED_CODE else ""
    return f"{type(error).__name__}, code {code}{right}"
