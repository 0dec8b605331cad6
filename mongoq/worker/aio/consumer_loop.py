"""Consumer loop: the parts that fetch, run and settle the items of one consumer, around a backlog that decides.

Its fetcher claims items while there is room. It runs an item alone if its next death would bury it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mongoq.errors import PayloadInvalid
from mongoq.model.envelope import attempts_of
from mongoq.model.item import Document, Item
from mongoq.model.log_fields import log_fields
from mongoq.model.outcomes import Release
from mongoq.protocol.claim.worker_claims import ClaimedBatch, claim_batch, claim_lapsed, skip_lapsed, take_over
from mongoq.protocol.state.context import QueueContext
from mongoq.protocol.state.taker import Handed
from mongoq.worker.aio.item_runner import AsyncItemRunner
from mongoq.worker.aio.settler import AsyncSettler
from mongoq.worker.backlog import Backlog, SettledCounts
from mongoq.worker.consumer import Consumer
from mongoq.worker.coordinator import POLL_SECONDS, Coordinator
from mongoq.worker.executor_aio import AioExecutor
from mongoq.worker.failure_log import FailureReporter
from mongoq.worker.handler_call import HandlerSettlements
from mongoq.worker.handover import Handover
from mongoq.worker.limiter import Limiter
from mongoq.worker.time_limit import TimeLimit

logger = logging.getLogger("mongoq.worker")

MAX_CLAIM = 1_000
"""Maximum number of items in one claim."""
MAX_SINGLE_CLAIMS = 100
"""Maximum number of items with expired leases that are claimed one by one before the first of them runs."""
DOUBTFUL_ATTEMPTS = 2
"""Runs of an item whose lease has run out, from which on it may well be the item that kills its workers."""


class AsyncConsumerLoop:
    """Works for one consumer. The path of an item: fetcher, backlog, item runner, backlog, settler.

    Attributes:
        consumer: options of the consumer.
        context: the queue, with the consumer's own settings.
        backlog: items held, from claim to settlement.
        counts: counts of settled items.
        halted: item whose failure stopped the consumer, and its error; ``None`` while it works.
        time_limit: gives up the calls that take too long.
        left_behind: items whose runs the engine has left behind at its end.
        limiter: holds permits and slots while the queue has limits.
    """

    def __init__(self, consumer: Consumer, coordinator: Coordinator, executor: AioExecutor) -> None:
        self.consumer = consumer
        self.context = consumer.context
        self.backlog = backlog = Backlog(consumer)
        self.counts = counts = SettledCounts()
        self.halted: tuple[Item[Any], BaseException | str | None] | None = None
        self.left_behind = 0
        self._coordinator = coordinator
        self._executor = executor
        self._settlements = settlements = HandlerSettlements(consumer)
        failures = FailureReporter(consumer, coordinator)
        self.time_limit = TimeLimit(consumer, backlog, failures, executor.cancel)
        self.limiter = limiter = Limiter(consumer, backlog, coordinator.worker)
        runner = AsyncItemRunner(consumer, backlog, settlements, failures, coordinator, executor, limiter)
        self._fetcher = AsyncFetcher(consumer, backlog, runner, counts, coordinator, executor, limiter)
        handover = Handover(consumer, backlog, limiter, coordinator) if Handover.fits(consumer) else None
        self._settler = AsyncSettler(
            *(consumer, backlog, settlements, counts, failures, coordinator, executor),
            handover=handover,
            take_over=self._fetcher.take_over,
        )

    def start(self) -> None:
        """Start the fetch and settle loops; runners start when there is something to run."""
        self._executor.start(self._fetcher.run, f"mongoq-fetch-{self.consumer.name}")
        if self._settler.is_first:
            self._executor.start(self._settler.run, f"mongoq-settle-{self.consumer.name}")

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
        if job is not None and self._settlements.record_loss(item):
            return
        fields = log_fields(item, worker=self._coordinator.worker)
        text = "item %s of queue %r is lost: it was taken, or settled, by somebody else"
        logger.warning(text, item.id, item.queue, extra=fields)
        if job is not None:
            job.lost.set()


@dataclass(eq=False, repr=False)
class AsyncFetcher:
    """Claims items for a backlog while it has room, and has the item runner run them."""

    consumer: Consumer
    backlog: Backlog
    runner: AsyncItemRunner
    counts: SettledCounts
    coordinator: Coordinator
    executor: AioExecutor
    limiter: Limiter
    _doubtful: Item[Any] | None = None

    async def run(self) -> None:
        """Claim until the backlog is closed."""
        self.backlog.claiming = True
        try:
            while not self.backlog.closed:
                try:
                    await self._fetch_once()
                except PayloadInvalid as invalid:
                    await self.runner.refuse(invalid)
                except Exception as error:
                    await self._back_off(error)
        finally:
            self.backlog.claiming = False
            self.backlog.settle_event.set()
            self.coordinator.emptied.set()

    async def _back_off(self, error: Exception) -> None:
        """Rest after an error; claim no more if another try is useless."""
        pause = self.coordinator.report_error("claim", error)
        if pause is None:
            self.backlog.close()
        else:
            await self.executor.rest(self.backlog.fetch_event, pause)

    async def _fetch_once(self) -> None:
        self.limiter.adopt()
        n = 0 if self.coordinator.is_paused(self.consumer) else min(self.backlog.room(), MAX_CLAIM)
        if n == 0:
            await self.executor.rest(self.backlog.fetch_event, self.backlog.pause(POLL_SECONDS))
            return
        consumer = self.consumer
        context, screen = consumer.claims or consumer.context, consumer.item_filter
        if self._doubtful is not None and not self.backlog.holds(self._doubtful):
            self._doubtful, context.state.held_up = None, 0.0  # settled: the next one of its kind may run
        ends: dict[str, Any] = {"over": self._is_interrupted, "answered": self._record_answer}
        if consumer.claims is None:
            ends["limit"] = self.limiter
        claim = consumer.queue._observed(claim_batch)(context, n, consumer.lease, screen=screen, **ends)
        try:
            claimed = await consumer.queue._run_flow(claim)
        finally:
            self.backlog.is_dry = False
        if claimed is None:
            return
        if claimed.screened:
            self._count_filtered(claimed.screened)
        if claimed.limited:
            await self.executor.rest(self.backlog.fetch_event, self.limiter.pause())
            return
        await self._admit(claimed.items, asked=n, seconds=claimed.seconds)
        has_claimed = await self._claim_lapsed(context, claimed, max(n - len(claimed.items), 0))
        if claimed.suspects and consumer.claims is None and not self.coordinator.is_turn_of_others():
            has_claimed = True
            try:
                await self._run_exclusively(claimed.suspects)
            finally:
                self.limiter.accept()  # what it has taken and not needed goes back
        if not (has_claimed or claimed.items) and (claimed.held_up or claimed.lapsed or claimed.suspects):
            await self.executor.rest(self.backlog.fetch_event, POLL_SECONDS / 10)

    async def _admit(self, items: list[Item[Any]], *, asked: int, seconds: float = 0.0) -> None:
        """Add claimed items to the backlog; where each has a rate of its key, put off those that may not start yet."""
        if self.consumer.rate_key is None or not items:
            self._accept(items, asked=asked, seconds=seconds)
            return
        self._measure_sizes(items)
        kept: list[Item[Any]] = []
        others: list[tuple[Item[Any], Any]] = [(item, Release()) for item in items]
        try:
            kept, others = await self.consumer.queue._run_flow(self.limiter.admit(items, self.runner.fail))
        finally:
            for item, outcome in others:
                self.backlog.refuse(item, self.consumer.lease_length, outcome)
            self._accept(kept, asked=asked, seconds=seconds)

    async def take_over(self, handed: Sequence[Handed]) -> None:
        """Add items that a settlement has reserved for this consumer, or bury those that cannot be decoded.

        What an error keeps from that comes back when its lease ends.
        """
        try:
            flow = self.consumer.queue._observed(take_over)(self.consumer.context, handed)
            items = await self.consumer.queue._run_flow(flow)
        except PayloadInvalid as invalid:
            await self.runner.refuse(invalid)
        except Exception as error:
            self.coordinator.report_error("claim", error)
        else:
            self._accept(items, asked=len(items) + 1)  # more: the queue has none beside them

    async def _claim_lapsed(self, context: QueueContext[Any], claimed: ClaimedBatch[Any], room: int) -> bool:
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
            documents = documents[: await self.consumer.queue._run_flow(self.limiter.take(len(documents)))]
        if not documents:
            return False
        items: list[Item[Any]] = []
        try:
            items = await self._claim(context, documents, together=True)
        finally:
            for item in items if self.consumer.claims is None else ():
                self._log_suspect(item, "it runs again")
            self._doubtful = next((item for item in items if item.attempts > DOUBTFUL_ATTEMPTS), self._doubtful)
            await self._admit(items, asked=len(documents) + 1)
        return bool(items)

    def _log_suspect(self, item: Item[Any], fate: str) -> None:
        fields = log_fields(item, worker=self.coordinator.worker)
        text = "item %s of queue %r may have killed a worker in run %d; %s"
        logger.warning(text, item.id, item.queue, item.attempts - 1, fate, extra=fields)

    async def _claim(
        self, context: QueueContext[Any], documents: Sequence[Document], *, together: bool
    ) -> list[Item[Any]]:
        claim = self.consumer.queue._observed(claim_lapsed)
        options: dict[str, Any] = {"together": together, "screen": self.consumer.item_filter}
        claimed: list[Item[Any]] = await self.consumer.queue._run_flow(
            claim(context, documents, self.consumer.lease, **options)
        )
        return claimed

    def _count_filtered(self, number: int) -> None:
        self.coordinator.settled += number
        self.counts.add(["screened"] * number)

    def _record_answer(self, found: bool) -> None:  # called by the claim
        self.backlog.is_dry = not found
        self.coordinator.report_recovery("claim")

    def _is_interrupted(self) -> bool:
        return self.backlog.closed or self.coordinator.is_paused(self.consumer)

    def _accept(self, items: list[Item[Any]], *, asked: int, seconds: float = 0.0) -> None:
        if not items:
            self.limiter.accept()
            return
        self._measure_sizes(items)
        self.runner.update_hooks()
        back = self.coordinator.is_paused(self.consumer) or not self.limiter.covers(items)
        enough = self.backlog.add(items, self.consumer.lease_length, asked=asked, seconds=seconds, back=back)
        self.limiter.accept()
        # Checked again: the pause may have begun meanwhile, and the exclusive consumer waits for running calls.
        if self.coordinator.is_paused(self.consumer):
            self.backlog.release_waiting()
            return
        self.runner.wake(enough)

    def _measure_sizes(self, items: list[Item[Any]]) -> None:
        """Measure the items that have no size yet, because they were claimed one by one."""
        for item in items:
            if not item._size:
                with suppress(Exception):  # another program may have written a document that cannot be encoded again
                    item._size = self.consumer.context.broker.encoding.size(item._document)

    async def _run_exclusively(self, suspects: Sequence[Document]) -> None:
        """Run items one at a time, while nothing else of this worker runs or waits: the next death buries them.

        They have all died beside others so far. Now a crash is the fault of the one item.
        """
        if not await self._may_claim_one():
            return
        if not self.coordinator.pause_others(self.consumer):
            return  # another consumer has the worker; the turn of this one comes
        in_vain = False
        try:
            in_vain = not await self._wait_until_quiet(self.coordinator.quiet_wait)
            for document in suspects:
                if in_vain or self.backlog.closed or self.coordinator.is_turn_of_others():
                    return
                if not await self._may_claim_one():
                    return
                for item in await self._claim(self.consumer.context, [document], together=False):
                    self._log_suspect(item, "it has no retry left, and runs alone")
                    await self._admit([item], asked=1)
                    await self._wait_until_quiet(math.inf)
        finally:
            self.coordinator.resume_others(in_vain=in_vain)

    async def _may_claim_one(self) -> bool:
        """Return whether the limits of the queue allow one more item; rest for a moment if not."""
        if not self.limiter.is_limited or await self.consumer.queue._run_flow(self.limiter.take(1)):
            return True
        await self.executor.rest(self.backlog.fetch_event, self.limiter.pause())
        return False

    async def _wait_until_quiet(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until this worker holds nothing; returns whether that was reached."""
        deadline = time.monotonic() + seconds
        while self.coordinator.holds_anything():
            if self.coordinator.halted or time.monotonic() > deadline:
                return False
            await self.executor.rest(self.coordinator.emptied, POLL_SECONDS / 10)
        return True
