# Generated from mongoq/worker/aio/source_runner.py by scripts/unasync.py. Do not edit.
"""Source runner: takes the lease of a source, reads its generator, and pushes the records."""

from __future__ import annotations

import logging
import time
from typing import Any

from mongoq.core.command import WakeEvent
from mongoq.core.coordination.document_lease import ForeignLease, TakenOver
from mongoq.core.coordination.sources import SourceLease
from mongoq.core_threads.coordination import sources
from mongoq.core_threads.coordination.document_lease import extend_lease, give_back
from mongoq.data.encoding.error_text import printable
from mongoq.data.log_fields import log_fields
from mongoq.errors import ArgumentInvalid
from mongoq.worker.coordinator import Coordinator
from mongoq.worker.executor import ThreadExecutor
from mongoq.worker.failure_log import exc_info_of
from mongoq.worker.outcome_resolver import error_kind
from mongoq.worker.sources import SourcePlan, SourceReader

logger = logging.getLogger("mongoq.source")

FOREIGN_LEASE_POLL_SECONDS = 1.0
"""Longest time between two tries for a lease that another process has, in seconds."""
EXTENSIONS_PER_LEASE = 3
"""Number of extensions in the length of a lease."""


class SourceRunner:
    """Runs one source, in one process at a time.

    A process that dies leaves the lease, and its committed records in the queue; when the lease ends, another process
    goes on after the last committed record.

    Attributes:
        plan: options of the source.
        active: True while the loop works, or has to give back the lease.
        ended: True after the end of a generator that is not called again.
        waits: True while another process has the lease.
        failure: error that stopped the source; ``None`` while it can go on.
        pushed: number of records pushed by this process.
    """

    def __init__(self, plan: SourcePlan, broker: Any, coordinator: Coordinator, executor: ThreadExecutor) -> None:
        self.plan = plan
        self.active = self.ended = False
        self.failure: BaseException | None = None
        self.pushed = 0
        self._broker, self._coordinator, self._executor = broker, coordinator, executor
        self._event = WakeEvent()
        self._once = self._closing = self._abandoned = self.waits = False
        self._due = 0.0
        self._extension_seconds = plan.lease.total_seconds() / EXTENSIONS_PER_LEASE

    @property
    def over(self) -> bool:
        """True when the source has nothing more to do in this run."""
        return self.ended or self.failure is not None

    def start(self, *, once: bool) -> None:
        """Start the loop; ``once``: call the source once, whatever its ``every`` says."""
        self._once = once or self.plan.every is None
        self.active = True
        self._executor.start(self._work, f"mongoq-source-{self.plan.name}")

    def stop(self) -> None:
        """Have the loop close the generator, push the remaining records, and give back the lease."""
        self._closing = True
        self._wake()

    def abandon(self) -> None:
        self._abandoned = True
        self.stop()

    def _wake(self) -> None:
        self._executor.set_event(self._event)

    def _is_running(self) -> bool:
        return not (self._closing or self.over)

    def _work(self) -> None:
        try:
            while self._is_running():
                lease = self._acquire_lease()
                if lease is None:
                    continue
                try:
                    while self._is_running():  # the lease is kept between two calls
                        self._call_source(lease)
                        every = self.plan.every
                        again = time.monotonic() + (0.0 if every is None else every.total_seconds())
                        while self._is_running() and (seconds_left := again - time.monotonic()) > 0:
                            self._extend_if_due(lease)
                            self._executor.rest(self._event, min(seconds_left, self._extension_seconds))
                except TakenOver as lost:
                    words = self.plan.name, lost.held.by or "nobody"
                    text = "source %r has lost its lease, which %s has; nothing more is pushed under it"
                    self._log(logging.WARNING, text, *words)
                else:
                    try:
                        self._broker._run(give_back, lease)
                    except Exception as error:
                        text = "the lease of source %r could not be given back: %r"
                        self._log(logging.DEBUG, text, self.plan.name, self._coordinator.hide(error))
        finally:
            self.active = False
            self._coordinator.changed.set()

    def _log(self, level: int, text: str, *words: object, exc_info: Any = None) -> None:
        fields = log_fields(queue=self.plan.queue.name, worker=self._coordinator.worker)
        logger.log(level, text, *words, exc_info=exc_info, extra=fields)

    # --- the lease -------------------------------------------------------------------------------

    def _acquire_lease(self) -> SourceLease | None:
        """Try to take the lease; after a rest without it, return ``None``."""
        plan = self.plan
        try:
            lease: SourceLease | ForeignLease = self._broker._run(sources.take_source, plan.id, plan.lease)
        except Exception as error:
            self._back_off("lease sources", error)
            return None
        self._coordinator.report_recovery("lease sources")
        if isinstance(lease, ForeignLease):
            if not self.waits:
                self._log(logging.INFO, "source %r is run by %s; it waits", plan.name, lease.by)
            self.waits = True
            self._executor.rest(self._event, min(FOREIGN_LEASE_POLL_SECONDS, self._extension_seconds))
            return None
        self.waits = False
        self._due = time.monotonic() + self._extension_seconds
        return lease

    def _extend_if_due(self, lease: SourceLease) -> None:
        """Extend the lease if its extension is due."""
        if time.monotonic() < self._due:
            return
        try:
            self._broker._run(extend_lease, lease)
        except TakenOver:
            raise
        except Exception as error:
            self._back_off("extend the leases of sources", error)
        else:
            self._coordinator.report_recovery("extend the leases of sources")
            self._due = time.monotonic() + self._extension_seconds

    # --- the generator ---------------------------------------------------------------------------

    def _call_source(self, lease: SourceLease) -> None:
        """Call the source once, push its records, and set the state of the source after the end of its generator."""
        reader = self.plan.open_reader(lease.position, self._wake, self._coordinator.log_errors)
        reader.start(self._executor.context.copy())
        try:
            while self._is_running() and not reader.over:
                wait = reader.wait()
                if wait == 0:
                    self._push_batch(lease, reader)
                else:
                    self._extend_if_due(lease)
                    longest = self._extension_seconds
                    self._executor.rest(self._event, longest if wait is None else min(wait, longest))
        finally:
            reader.close()
            while not (reader.ended or self._abandoned):
                self._executor.rest(self._event, FOREIGN_LEASE_POLL_SECONDS)
            if not reader.ended:
                self._log(logging.WARNING, "source %r does not come to its end, and is left behind", self.plan.name)
        while not (self._abandoned or reader.over):
            self._push_batch(lease, reader)
        error = self.failure or (reader.failure if reader.over else None)
        if error is not None:
            self.failure = error
            exc_info = exc_info_of(error, "type") if self._coordinator.log_errors == "type" else printable(error)
            text = "source %r stops: %s; what it has yielded before is in its queue"
            self._log(logging.ERROR, text, self.plan.name, error_kind(error), exc_info=exc_info)
            self._coordinator.changed.set()
        elif self._once and not self._closing:
            self.ended = True
            self._coordinator.changed.set()

    def _push_batch(self, lease: SourceLease, reader: SourceReader) -> None:
        """Push a batch, however long that takes; after ``stop``, try once."""
        batch = reader.take()
        while batch and self.failure is None:
            try:
                number = self.plan.queue._run(sources.push_records, lease, batch)
            except TakenOver:
                raise
            except ArgumentInvalid as error:
                self.failure = error
            except Exception as error:
                if self._closing:
                    self._abandoned = True  # the next call of the source yields the remaining records again
                    return
                self._back_off("push what sources yield", error)
            else:
                self._coordinator.report_recovery("push what sources yield")
                self._due = time.monotonic() + self._extension_seconds
                self.pushed += number
                batch = batch[number:]

    def _back_off(self, what: str, error: Exception) -> None:
        """Rest after an error; end the loop if another try is useless."""
        pause = self._coordinator.report_error(what, error)
        if pause is None:
            self._closing = self._abandoned = True
        else:
            self._executor.rest(self._event, pause)
