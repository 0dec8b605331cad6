"""One consumer under test: claims, runs and settles items on request, and returns their results."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal, TypeVar

from mongoq.data.arguments import duration
from mongoq.data.encoding.error_text import printable
from mongoq.data.item import Item, id_key
from mongoq.data.log_fields import log_fields
from mongoq.data.outcomes import Failed, Later, Move, Release, ResolvedOutcome, name_ending
from mongoq.data.push_options import due_time
from mongoq.data.rate import Pace
from mongoq.errors import VIRTUAL, MongoqError, ReservationLost, StageStopped, TransactionsUnavailable
from mongoq.sync.operations import (
    apply_outcomes,
    apply_outcomes_at_most_once,
    bucket_id,
    commit_before_run,
    end_put_offs,
    ensure_ready,
    give_back_slots,
    is_kept,
    take_slots,
)
from mongoq.testing.server import VirtualServer
from mongoq.worker import AsyncJob, Job
from mongoq.worker.backlog import HandlerCall
from mongoq.worker.consumer import Consumer
from mongoq.worker.run_context import RunContext
from mongoq.worker.threads.limiter import KeyedRates, find_pace

T = TypeVar("T")

ResultOutcome = Literal["done", "retry", "later", "dead", "dropped", "moved", "screened", "lost"]
RESULTS: dict[str, ResultOutcome] = {
    "apart": "done",
    "done": "done",
    "dead": "dead",
    "dropped": "dropped",
    "moved": "moved",
}
"""Results by their names in statistics; results of failed runs and lost items aside."""


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Result of one item of a run.

    Attributes:
        item: the item as it was reserved for the run, so that ``item.attempts`` counts it.
        outcome: ``"done"``, committed; ``"retry"``, rolled back; ``"later"``, put off by ``Later``; ``"dead"``, buried,
            by ``Dead`` or after its last retry; ``"dropped"``, by ``Drop``; ``"moved"``, by ``Move``, or on to the
            target of its stage; ``"screened"``: it did not match its stage's ``where``, was not run, and was settled by
            ``otherwise``; or ``"lost"``: at the end of the run it had another holder or was settled, perhaps by the
            handler itself, and nothing was changed.
        returned: return value of the handler; of a batch handler the entry for this item.
        error: exception of the handler, or the error in its outcome; or the reason why a returned outcome was
            impossible; or the ``ReservationLost`` of a lost item; else ``None``.
        delay: time until the next run, for ``"retry"`` and ``"later"``.
        to: queue that a moved or a dead item went to.
    """

    item: Item[Any]
    outcome: ResultOutcome
    returned: Any = None
    error: BaseException | str | None = None
    delay: timedelta | None = None
    to: str | None = None

    def __repr__(self) -> str:
        """Return the result in one line, as a failed assertion shows it."""
        parts = [f"{self.outcome!r}, run {self.item.attempts} of {self.item.queue!r} with {self.item.payload!r}"]
        parts += [f"returned={self.returned!r}"] * (self.returned is not None)
        parts += [f"error={self.error!r}"] * (self.error is not None)
        parts += [f"delay={self.delay}"] * (self.delay is not None)
        parts += [f"to={self.to!r}"] * (self.to is not None)
        return f"Result({', '.join(parts)})"


class NeverIdle(MongoqError):
    """The queues were not empty after ``limit`` runs: most likely items go round in a circle.

    Attributes:
        limit: number of runs.
        results: results of these runs, and of the run beyond the limit.
    """

    def __init__(self, limit: int, results: Sequence[Result]) -> None:
        super().__init__(
            f"there was still something to run after {limit} runs: {results[-1]!r}; a handler may push "
            f"or move items in a circle, or retry without delay; give a larger limit= if there is that much to do"
        )
        self.limit = limit
        self.results = list(results)


logger = logging.getLogger("mongoq.testing")

RUN_FAILURES = Exception, SystemExit, asyncio.CancelledError
"""Errors that fail a run. Other errors that a worker handles belong to the test here: Ctrl-C, a timeout,
``pytest.fail``.
"""


class VirtualStation:
    """Runs the items of one consumer, one run at a time; the worker's own parts make all decisions."""

    def __init__(
        self,
        consumer: Consumer,
        server: VirtualServer,
        await_coroutine: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
    ) -> None:
        self._await_coroutine = await_coroutine
        self.consumer = consumer
        self._server = server
        self._queue = server.queue(consumer.queue._context)
        self._context = self._queue._context
        self._refused: list[Result] = []
        self._keyed = KeyedRates(consumer, Lock())
        self._claims = self._queue if consumer.claims is None else server.queue(consumer.claims)

    async def run(self, n: int | None) -> list[Result]:
        """Run ready items: up to ``n``, by default the batch of the consumer; an empty list if none is ready.

        It waits for nothing but handlers that are coroutine functions.
        """
        screen, items, others = self.consumer.item_filter, [], []
        for item in self._claim_within(n or self.consumer.batch or 1):
            if screen is None or self._queue._run(is_kept, screen, item):
                items.append(item)
            else:  # it was settled by that
                others.append(Result(item, "screened", to=_target_of(screen.rest)))
        screened = [*self._refused, *others]
        if not items:
            return screened
        run = HandlerCall(items, time.monotonic())
        # Registered, so that advance inside the handler extends the leases of these items.
        self._server.running[run] = self.consumer
        try:
            return screened + await self._call(run)
        except BaseException:  # it ends the test, and is no failure of the item
            self._give_back(items)
            raise
        finally:
            del self._server.running[run]

    def _claim_within(self, n: int) -> list[Item[Any]]:
        """Claim what the rate of the queue allows at the time of the virtual clock."""
        self._refused = []
        if self.consumer.claims is not None:
            return self._claim(n)
        self._queue._run(ensure_ready)  # the settings of the queue, the consumer's limits included
        pace = find_pace(self._context)
        paces, name = self._server.paces, self.consumer.name
        if self.consumer.rate_key is not None and paces.setdefault(name, pace) != pace:
            self._queue._run(end_put_offs)
            paces[name] = pace
        if pace is None:
            return self._claim(n)
        if self.consumer.rate_key is not None:
            return self._claim_keyed(pace)
        broker, bucket, most = self._context.broker, bucket_id(name), min(n, pace.max_together)
        slots = self._queue._run_given(take_slots, broker, bucket, pace, most)
        if not isinstance(slots, list):
            return []
        items = self._claim(len(slots))
        if unused := slots[len(items) :]:
            self._queue._run_given(give_back_slots, broker, bucket, pace, unused)
        return items

    def _claim_keyed(self, pace: Pace) -> list[Item[Any]]:
        """Claim the next item whose key has a slot; those before it are put off, as a worker does."""
        fail = partial(self.consumer.resolver.failure, self.consumer)
        while claimed := self._claim(1):
            kept, others = self._queue._run_given(self._keyed.admit, claimed, pace, 1, fail)
            for item, outcome in others:
                if isinstance(outcome, Release):
                    self._queue._run(apply_outcomes, [(item, outcome)], self._server.resolve_target)
                else:
                    self._refused.append(self._settle(item, outcome, None, outcome.error))
            if kept:
                return kept
        return []

    def _claim(self, n: int) -> list[Item[Any]]:
        if n > 1:
            return self._claims.reserve_many(n, lease=self.consumer.lease)
        item = self._claims.reserve(lease=self.consumer.lease)
        return [] if item is None else [item]

    def _give_back(self, items: Sequence[Item[Any]]) -> None:
        back = [(item, Release()) for item in items]
        self._queue._run(apply_outcomes, back, self._server.resolve_target)

    # --- the run ---------------------------------------------------------------------------------

    async def _call(self, run: HandlerCall) -> list[Result]:
        consumer, items = self.consumer, run.items
        returned: Any = None
        raised: BaseException | None = None
        payload = items[0].payload if consumer.batch is None else [item.payload for item in items]
        refused = consumer.resolver.refusal(consumer, items)
        if refused is None and consumer.pops:
            self._queue._run(commit_before_run, items)
            items = [self._context.preserve_payload(item) for item in items]
        run.context = RunContext.current()
        try:
            if refused is None and consumer.asynchronous:
                returned = await self._await_coroutine(self._await_handler(run, payload))
            elif refused is None:
                returned = run.context.call(consumer.handler, *self._make_arguments(run, payload, Job, self._queue))
            outcomes = refused or run.outcomes
            outcomes = outcomes or run.context.call(consumer.resolver.outcomes, consumer, items, returned)
        except RUN_FAILURES as error:
            # A handler may raise CancelledError by itself; that fails its run and does not end the test.
            task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
            if task is not None and task.cancelling() > 0 and issubclass(type(error), asyncio.CancelledError):
                raise
            if (lacking := _transaction_of(error)) is not None:
                raise lacking from None
            raised, outcomes = error, consumer.resolver.failures(consumer, items, error)
            fields = log_fields(items[0], duration=time.monotonic() - run.started)
            logger.warning("a run of %s has failed", consumer.title, exc_info=printable(error), extra=fields)
        entries = returned
        if raised is not None or returned is None or isinstance(returned, BaseException):
            entries = [None if raised is not None else returned] * len(items)
        elif consumer.batch is None:
            entries = [returned]
        self._give_back([item for item, outcome in zip(items, outcomes, strict=True) if isinstance(outcome, Release)])
        return [
            self._settle(item, outcome, entry, raised)
            for item, outcome, entry in zip(items, outcomes, entries, strict=True)
            if not isinstance(outcome, Release)
        ]

    async def _await_handler(self, run: HandlerCall, payload: Any) -> Any:
        # The job is made here, because its event belongs to the running loop.
        arguments = self._make_arguments(run, payload, AsyncJob, self._server.async_queue(self._context))

        async def call() -> Any:
            return await self.consumer.handler(*arguments)

        return await run.context.step(call())

    def _make_arguments(self, run: HandlerCall, payload: Any, kind: type[Any], queue: Any) -> tuple[Any, ...]:
        consumer, worker = self.consumer, str(self._context.broker.identity)
        if not consumer.takes_job:
            return (payload,)
        run.job = kind(queue, run.items, name=consumer.label, gone=consumer.pops, worker=worker)
        return payload, run.job

    # --- results ---------------------------------------------------------------------------------

    def _settle(self, item: Item[Any], outcome: ResolvedOutcome, entry: Any, error: BaseException | None) -> Result:
        """Settle an item, and return its result; an impossible outcome becomes a failure."""
        apply = apply_outcomes_at_most_once if self.consumer.pops else apply_outcomes
        refusal = self._queue._run(apply, [(item, outcome)], self._server.resolve_target).get(id_key(item.id))
        if refusal is None:
            if isinstance(outcome, Failed):
                return self._make_failure(item, outcome, entry)
            if isinstance(outcome, Later):
                clock = self._context.broker.clock
                return Result(item, "later", entry, delay=due_time(clock, outcome.delay, outcome.when) - clock.now())
            if error is None and isinstance(entry, BaseException):
                error = entry
            ending = name_ending(outcome, spent=False)
            to = self._context.settings.dead if ending == "dead" else _target_of(outcome)
            return Result(item, RESULTS[ending], entry, error, to=to)
        if _transaction_of(refusal) is not None:
            raise refusal
        if isinstance(refusal, ReservationLost):
            return Result(item, "lost", entry, refusal if error is None else error)
        # An impossible outcome is a failure of the run; a failure that cannot be settled either ends the test.
        if isinstance(refusal, MongoqError) and not isinstance(outcome, Failed):
            return self._settle(item, self.consumer.resolver.failure(self.consumer, item, refusal), entry, refusal)
        raise refusal

    def _make_failure(self, item: Item[Any], outcome: Failed, entry: Any) -> Result:
        """Return the result of a failed run: ``"retry"`` or ``"dead"``, as the stored item shows."""
        if outcome.halts:
            cause = outcome.error if isinstance(outcome.error, BaseException) else None
            raise StageStopped(self.consumer.label, item.queue, item.id) from cause
        untyped = replace(self._context, codec=self._context.broker.untyped)
        # Without a model: the payload may not fit it, and only the existence of the item counts.
        if self._server.queue(untyped).get(item.id) is None:
            return Result(item, "dead", entry, outcome.error, to=self._context.settings.dead)
        return Result(item, "retry", entry, outcome.error, delay=duration(outcome.delay, "delay"))


def _target_of(outcome: object) -> str | None:
    """Return the name of the queue that an outcome moves an item to, if there is one."""
    return getattr(outcome.to, "name", outcome.to) if isinstance(outcome, Move) else None


def _transaction_of(error: BaseException | None) -> TransactionsUnavailable | None:
    """Return the ``TransactionsUnavailable`` of this broker among an error and its causes, or ``None``.

    A retry does not help: the test needs a feature that a virtual broker does not have.
    """
    checked: set[int] = set()
    with suppress(BaseException):  # attributes of a user's class may raise anything
        while error is not None and id(error) not in checked:  # errors may be each other's causes
            if isinstance(error, TransactionsUnavailable) and error.server == VIRTUAL:
                return error
            checked.add(id(error))
            error = error.__context__ if error.__cause__ is None else error.__cause__
    return None
