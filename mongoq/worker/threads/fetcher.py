# Generated from mongoq/worker/aio/fetcher.py by scripts/unasync.py. Do not edit.
"""Fetcher of a consumer: claims items while there is room, and runs items that may have killed a worker alone."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import Any

from mongoq.errors import PayloadInvalid
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Failed, Release
from mongoq.protocol.claim.worker_claims import claim_batch, claim_exclusive
from mongoq.protocol.settle.apply_outcomes import commit_before_run
from mongoq.protocol.state.context import QueueContext
from mongoq.worker.threads.consumer_state import POLL_SECONDS, ConsumerState

__all__ = ["Fetcher"]

logger = logging.getLogger("mongoq.worker")

MAX_CLAIM = 1_000
"""Maximum number of items in one claim."""
MAX_SINGLE_CLAIMS = 100
"""Maximum number of lapsed items that are claimed one by one before the first of them is settled."""
SINGLE_CLAIMS_LEASE_SHARE = 1 / 4
"""Share of a lease that the first of these may have waited by then: its extension is not due yet."""


class Fetcher(ConsumerState):
    """Part of a consumer loop that claims items."""

    def _fetch(self) -> None:
        self.claiming = True
        try:
            while not self.backlog.closed:
                try:
                    self._fetch_once()
                except PayloadInvalid as invalid:
                    self._refuse(invalid)
                except Exception as error:
                    self._back_off("claim", error, self.backlog.fetch_event)
        finally:
            self.claiming = False
            self.backlog.settle_event.set()
            self._coordinator.emptied.set()

    def _refuse(self, invalid: PayloadInvalid) -> None:
        """Settle as failed an item that does not fit the model and has no dead queue to go to."""
        item: Any = invalid.item
        if self.consumer.pops and not self._take_for_good(item):
            logger.error("item %s of %s cannot be run: %s", item.id, self.consumer.title, invalid)
            self.backlog.refuse(item, self.lease(), Release())
            return
        verdict = self.consumer.resolver.failure(self.consumer, item, invalid)
        if isinstance(verdict, Failed):
            self._log_failure(item, verdict)
        self.backlog.refuse(item, self.lease(), verdict)
        self._halt_for(item, verdict)

    def _take_for_good(self, item: Item[Any]) -> bool:
        """Take an item that runs at most once out of its queue; returns whether this worker certainly did."""
        try:
            failed = self._driver.run(commit_before_run(self.context, [item]))
        except BaseException as error:  # a handler that has ended may still cancel the task that awaits this
            if self._coordinator.halted and not isinstance(error, Exception):
                raise
            failed = {id_key(item.id): error}
        if failed:
            logger.warning("item %s of %s is not run, since it may be gone: %r", item.id, self.consumer.title, failed)
        return not failed

    def _fetch_once(self) -> None:
        n = 0 if self._coordinator.is_paused(self) else min(self.backlog.room(), MAX_CLAIM)
        if n == 0:
            self._executor.rest(self.backlog.fetch_event, self.backlog.pause(POLL_SECONDS))
            return
        consumer = self.consumer
        claim = claim_batch(
            consumer.claims or self.context,
            n,
            consumer.lease,
            over=self._is_interrupted,
            screen=consumer.screen,
        )
        taken = self._driver.run(claim)
        self._coordinator.report_recovery("claim")
        if taken is None:
            return
        if taken.screened:
            self._count_filtered(taken.screened)
        self._accept(taken.items, asked=n, seconds=taken.seconds)
        if not taken.lapsed:
            return
        if consumer.claims is not None:
            found = self._claim_lapsed(consumer.claims, min(n - len(taken.items), MAX_SINGLE_CLAIMS))
        elif found := not self._coordinator.is_turn_of_others():
            self._run_exclusively()
        if not (found or taken.items):
            self._executor.rest(self.backlog.fetch_event, POLL_SECONDS / 10)

    def _claim_lapsed(self, context: QueueContext[Any], room: int) -> bool:
        """Claim lapsed items where no handler runs, one by one; returns whether there were any.

        A claim of many would wait up to a minute for a transaction whose process has died. When the claims take long,
        the rest is left for the next time: otherwise the first item would lapse again before the last is claimed.
        """
        found: list[Item[Any]] = []
        deadline = time.monotonic() + self.lease().total_seconds() * SINGLE_CLAIMS_LEASE_SHARE
        try:
            while len(found) < room and not self._is_interrupted():
                claimed = self._driver.run(claim_exclusive(context, self.consumer.lease))
                if claimed is None or claimed[0] is None:
                    break
                found.append(claimed[0])
                if time.monotonic() > deadline:
                    room = len(found)  # counts as a full claim, since there may be more
        finally:
            self._accept(found, asked=room)
        return bool(found)

    def _count_filtered(self, number: int) -> None:
        self._coordinator.settled += number
        self.counts.add(["screened"] * number)

    def _is_interrupted(self) -> bool:
        return self.backlog.closed or self._coordinator.is_paused(self)

    def _accept(self, items: list[Item[Any]], *, asked: int, seconds: float = 0.0) -> None:
        if not items:
            return
        self._measure_sizes(items)
        back = self._coordinator.is_paused(self)
        enough = self.backlog.add(items, self.lease(), asked=asked, seconds=seconds, back=back)
        # Checked again: the pause may have begun meanwhile, and the exclusive consumer waits for running calls.
        if self._coordinator.is_paused(self):
            self.backlog.release_waiting()
            return
        missing = self.backlog.wake(enough)
        for _ in range(min(missing, self.consumer.concurrency - self._runners)):
            self._executor.start(
                self._work, f"mongoq-run-{self.consumer.name}-{self._runners + 1}", calls_handlers=True
            )
            self._runners += 1

    def _measure_sizes(self, items: list[Item[Any]]) -> None:
        """Measure the items that have no size yet: those claimed one by one."""
        for item in items:
            if not item._size:
                with suppress(Exception):  # another program may have written a document that cannot be encoded again
                    item._size = self.context.broker.encoding.size(item._document)

    def _work(self) -> None:
        """Run claimed items; implemented by the consumer loop."""
        raise NotImplementedError

    def _run_exclusively(self) -> None:
        """Run items that may have killed a worker, one at a time, while nothing else of this worker runs or waits.

        A crash is then the fault of the one item, and counts as its attempt.
        """
        if not self._coordinator.pause_others(self):
            return  # another consumer has the worker; the turn of this one comes
        in_vain = False
        try:
            in_vain = not self._wait_until_quiet(self._coordinator.quiet_wait)
            while not (in_vain or self.backlog.closed or self._coordinator.is_turn_of_others()):
                taking = claim_exclusive(self.context, self.consumer.lease, screen=self.consumer.screen)
                claimed = self._driver.run(taking)
                if claimed is None:
                    return
                item, lapsed = claimed
                if item is None:
                    self._count_filtered(1)
                else:
                    self._run_one_exclusively(item, lapsed=lapsed)
                if not lapsed:
                    return
        finally:
            self._coordinator.resume_others(in_vain=in_vain)

    def _run_one_exclusively(self, item: Item[Any], *, lapsed: bool) -> None:
        if lapsed:
            logger.warning("item %s of queue %r may have killed a worker; it runs alone", item.id, item.queue)
        self._accept([item], asked=1)
        self._wait_until_quiet(math.inf)

    def _wait_until_quiet(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until this worker holds nothing; returns whether that was reached."""
        deadline = time.monotonic() + seconds
        while self._coordinator.holds_anything():
            if self._coordinator.halted or time.monotonic() > deadline:
                return False
            self._executor.rest(self._coordinator.emptied, POLL_SECONDS / 10)
        return True
