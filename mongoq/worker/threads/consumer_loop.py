# Generated from mongoq/worker/aio/consumer_loop.py by scripts/unasync.py. Do not edit.
"""Consumer loop: claims the items of one consumer while there is room, and owns the parts that run and settle them.

It runs an item alone if its next death would bury it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mongoq.core.claim.worker_claims import ClaimedBatch, skip_lapsed
from mongoq.core.state.context import Handed, QueueContext
from mongoq.core_threads.claim.worker_claims import claim_batch, claim_lapsed, take_over
from mongoq.data.envelope import attempts_of
from mongoq.data.item import Document, Item
from mongoq.data.outcomes import Release
from mongoq.errors import PayloadInvalid
from mongoq.worker.backlog import Backlog, HandlerCall, SettledCounts
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import POLL_SECONDS, Coordinator
from mongoq.worker.executor import ThreadExecutor
from mongoq.worker.threads.item_runner import ItemRunner
from mongoq.worker.threads.limiter import Limiter
from mongoq.worker.threads.settler import Settler
from mongoq.worker.time_limit import TimeLimit

MAX_CLAIM = 1_000
"""Maximum number of items in one claim."""
MAX_SINGLE_CLAIMS = 100
"""Maximum number of items with expired leases that are claimed one by one before the first of them runs."""
DOUBTFUL_ATTEMPTS = 2
"""Runs of an item whose lease has run out, from which on it may well be the item that kills its workers."""


class ConsumerLoop:
    """Works for one consumer. The path of an item: claim, backlog, item runner, backlog, settler.

    Attributes:
        consumer: options of the consumer.
        context: the queue, with the consumer's own settings.
        coordinator: state of all consumers of the worker.
        executor: runs loops and handlers.
        backlog: items held, from claim to settlement; it decides.
        counts: counts of settled items.
        halted: item whose failure stopped the consumer, and its error; ``None`` while it works.
        time_limit: gives up the calls that take too long.
        left_behind: calls that the engine has given up at its end.
        limiter: holds permits and slots while the queue has limits.
    """

    def __init__(self, consumer: Consumer, coordinator: Coordinator, executor: ThreadExecutor) -> None:
        self.consumer, self.context = consumer, consumer.context
        self.coordinator, self.executor = coordinator, executor
        self.backlog = Backlog(consumer)
        self.counts = SettledCounts()
        self.halted: tuple[Item[Any], BaseException | str | None] | None = None
        self.left_behind: list[HandlerCall] = []
        self.time_limit = TimeLimit(consumer, self.backlog, coordinator, executor.cancel)
        self.limiter = Limiter(consumer, self.backlog, coordinator.worker)
        self._runner = ItemRunner(self)
        self._settler = Settler(self)
        self._doubtful: Item[Any] | None = None

    def start(self) -> None:
        """Start the claims and settlements; runners start when there is something to run."""
        self.executor.start(self._run, f"mongoq-fetch-{self.consumer.name}")
        if self._settler.is_first:
            self.executor.start(self._settler.run, f"mongoq-settle-{self.consumer.name}")

    def end(self) -> None:
        """Claim and start nothing more, and have the loops end as soon as everything is settled."""
        self.backlog.close()
        self._settler.end()

    def lose(self, token: Any, key: Any) -> None:
        """Record the loss of an item to another worker, and log it unless its own handler has settled it."""
        entry = self.backlog.lose(token, key)
        if entry is None:
            return
        item, run = entry
        job = None if run is None else run.job
        if job is not None and self.backlog.is_settled_by_handler(item, is_lost=True):
            return
        text = "item %s of queue %r is lost: it was taken, or settled, by somebody else"
        self.coordinator.log(logging.WARNING, text, item.id, item.queue, item=item)
        if job is not None:
            job.lost.set()

    # --- claims ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Claim until the backlog is closed."""
        self.backlog.claiming = True
        try:
            while not self.backlog.closed:
                try:
                    self._fetch_once()
                except PayloadInvalid as invalid:
                    self._runner.refuse(invalid)
                except Exception as error:
                    pause = self.coordinator.report_error("claim", error)
                    if pause is None:
                        self.backlog.close()
                    else:
                        self.executor.rest(self.backlog.fetch_event, pause)
        finally:
            self.backlog.claiming = False
            self.backlog.settle_event.set()
            self.coordinator.emptied.set()

    def _fetch_once(self) -> None:
        consumer, backlog, limiter, executor = self.consumer, self.backlog, self.limiter, self.executor
        limiter.adopt()
        n = 0 if self.coordinator.is_paused(consumer) else min(backlog.room(), MAX_CLAIM)
        if n == 0:
            executor.rest(backlog.fetch_event, backlog.pause(POLL_SECONDS))
            return
        context = consumer.claims or consumer.context
        if self._doubtful is not None and not backlog.holds(self._doubtful):
            self._doubtful, context.state.held_up = None, 0.0  # settled: the next one of its kind may run

        def record_answer(found: bool) -> None:
            backlog.is_dry = not found
            self.coordinator.report_recovery("claim")

        options: dict[str, Any] = {"screen": consumer.item_filter, "answered": record_answer}
        options["limit"] = limiter if consumer.claims is None else None
        options["over"] = lambda: backlog.closed or self.coordinator.is_paused(consumer)
        try:
            claimed = consumer.queue._run_given(claim_batch, context, n, consumer.lease, **options)
        finally:
            backlog.is_dry = False
        if claimed is None:
            return
        if claimed.screened:
            self.coordinator.settled += claimed.screened
            self.counts.add(["screened"] * claimed.screened)
        if claimed.limited:
            executor.rest(backlog.fetch_event, limiter.pause())
            return
        self._admit(claimed.items, asked=n, seconds=claimed.seconds)
        has_claimed = self._claim_lapsed(context, claimed, max(n - len(claimed.items), 0))
        if claimed.suspects and consumer.claims is None and not self.coordinator.is_turn_of_others():
            has_claimed = True
            try:
                self._run_exclusively(claimed.suspects)
            finally:
                limiter.accept()  # what it has taken and not needed goes back
        if not (has_claimed or claimed.items) and (claimed.held_up or claimed.lapsed or claimed.suspects):
            executor.rest(backlog.fetch_event, POLL_SECONDS / 10)

    def _admit(self, items: list[Item[Any]], *, asked: int, seconds: float = 0.0) -> None:
        """Add claimed items to the backlog; where each has a rate of its key, put off those that may not start yet."""
        for item in items:
            if not item._size:  # it was claimed by itself
                with suppress(Exception):  # another program may have written a document that cannot be encoded again
                    item._size = self.context.broker.encoding.size(item._document)
        if self.consumer.rate_key is None or not items:
            self._accept(items, asked=asked, seconds=seconds)
            return
        kept: list[Item[Any]] = []
        others: list[tuple[Item[Any], Any]] = [(item, Release()) for item in items]
        try:
            kept, others = self.consumer.queue._run_given(self.limiter.admit, items, self._runner.fail)
        finally:
            self.backlog.refuse(others, self.consumer.lease_length)
            self._accept(kept, asked=asked, seconds=seconds)

    def _accept(self, items: list[Item[Any]], *, asked: int, seconds: float) -> None:
        if not items:
            self.limiter.accept()
            return
        self._runner.update_hooks()
        back = self.coordinator.is_paused(self.consumer) or not self.limiter.covers(items)
        enough = self.backlog.add(items, self.consumer.lease_length, asked=asked, seconds=seconds, back=back)
        self.limiter.accept()
        # Checked again: the pause may have begun meanwhile, and the exclusive consumer waits for running calls.
        if self.coordinator.is_paused(self.consumer):
            self.backlog.release_waiting()
        else:
            self._runner.wake(enough)

    def take_over(self, handed: Sequence[Handed]) -> None:
        """Add items that a settlement has reserved for this consumer, or bury those that cannot be decoded.

        What an error keeps from that comes back when its lease ends.
        """
        try:
            items = self.consumer.queue._run_given(take_over, self.context, handed)
        except PayloadInvalid as invalid:
            self._runner.refuse(invalid)
        except Exception as error:
            self.coordinator.report_error("claim", error)
        else:
            self._admit(items, asked=len(items) + 1)  # more: the queue has none beside them

    # --- items whose leases have run out ---------------------------------------------------------

    def _claim_lapsed(self, context: QueueContext[Any], claimed: ClaimedBatch[Any], room: int) -> bool:
        """Claim items with expired leases, which run beside others; returns whether there were any.

        Of those that died in a later run than their first only one at a time runs in this process: they can take the
        same neighbours with them twice at most. The others are left until it is settled, as are those that must run
        alone, and claims pass over them.
        """
        if self.consumer.claims is not None:  # without a handler nothing can die of them
            documents = [*claimed.lapsed, *claimed.suspects]
        else:
            documents = [document for document in claimed.lapsed if attempts_of(document) < DOUBTFUL_ATTEMPTS]
            doubtful = [document for document in claimed.lapsed if attempts_of(document) >= DOUBTFUL_ATTEMPTS]
            is_free = self._doubtful is None
            documents = doubtful[:is_free] + documents
            if claimed.suspects or len(doubtful) > is_free:
                skip_lapsed(context)
        documents = documents[: min(room, MAX_SINGLE_CLAIMS)]
        if self.limiter.is_limited and documents:
            documents = documents[: self.consumer.queue._run_given(self.limiter.take, len(documents))]
        if not documents:
            return False
        items: list[Item[Any]] = []
        try:
            items = self._claim(context, documents, together=True)
        finally:
            for item in items if self.consumer.claims is None else ():
                self._log_suspect(item, "it runs again")
            self._doubtful = next((item for item in items if item.attempts > DOUBTFUL_ATTEMPTS), self._doubtful)
            self._admit(items, asked=len(documents) + 1)
        return bool(items)

    def _log_suspect(self, item: Item[Any], fate: str) -> None:
        text = "item %s of queue %r may have killed a worker in run %d; %s"
        self.coordinator.log(logging.WARNING, text, item.id, item.queue, item.attempts - 1, fate, item=item)

    def _claim(self, context: QueueContext[Any], documents: Sequence[Document], *, together: bool) -> list[Item[Any]]:
        options: dict[str, Any] = {"together": together, "screen": self.consumer.item_filter}
        run = self.consumer.queue._run_given
        return run(claim_lapsed, context, documents, self.consumer.lease, **options)  # type: ignore[no-any-return]

    def _run_exclusively(self, suspects: Sequence[Document]) -> None:
        """Run items one at a time, while nothing else of this worker runs or waits: the next death buries them.

        They have all died beside others so far. Now a crash is the fault of the one item.
        """
        if not self._may_claim_one() or not self.coordinator.pause_others(self.consumer):
            return  # another consumer has the worker; the turn of this one comes
        in_vain = False
        try:
            in_vain = not self._wait_until_quiet(self.coordinator.quiet_wait)
            for document in suspects:
                if in_vain or self.backlog.closed or self.coordinator.is_turn_of_others():
                    return
                if not self._may_claim_one():
                    return
                for item in self._claim(self.context, [document], together=False):
                    self._log_suspect(item, "it has no retry left, and runs alone")
                    self._admit([item], asked=1)
                    self._wait_until_quiet(math.inf)
        finally:
            self.coordinator.resume_others(in_vain=in_vain)

    def _may_claim_one(self) -> bool:
        """Return whether the limits of the queue allow one more item; rest for a moment if not."""
        if not self.limiter.is_limited or self.consumer.queue._run_given(self.limiter.take, 1):
            return True
        self.executor.rest(self.backlog.fetch_event, self.limiter.pause())
        return False

    def _wait_until_quiet(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until this worker holds nothing; returns whether that was reached."""
        deadline = time.monotonic() + seconds
        while self.coordinator.holds_anything():
            if self.coordinator.halted or time.monotonic() > deadline:
                return False
            self.executor.rest(self.coordinator.emptied, POLL_SECONDS / 10)
        return True
