"""Documents that no public call writes: streams, tasks and halts of Spark, marks and notes of housekeeping.

This is the only module of the folder that runs operations of the core, so it changes when they move. The dumps do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from bson import ObjectId

import mongoq
from mongoq.core.coordination.streams import StreamRun
from mongoq.core.state import claim_hints
from mongoq.core_threads import admin
from mongoq.core_threads.base import first_due
from mongoq.core_threads.coordination import document_lease, heartbeats, repairs, streams
from mongoq.core_threads.history import counters
from mongoq.core_threads.settle.by_token import extend_held

T = TypeVar("T")
LEASE, RUN = timedelta(seconds=30), timedelta(seconds=10)

__all__ = [
    "Reader",
    "flush",
    "halt",
    "is_halted",
    "mark_end",
    "repair",
    "sweep",
    "task_beats",
    "tasks_of",
    "without_hints",
]


@contextmanager
def without_hints() -> Iterator[None]:
    """Let claims never count as slow: on a busy machine they would add marks to queues at random."""
    before, claim_hints.CLAIM_SECONDS_BEFORE_MEASURING = claim_hints.CLAIM_SECONDS_BEFORE_MEASURING, math.inf
    try:
        yield
    finally:
        claim_hints.CLAIM_SECONDS_BEFORE_MEASURING = before


def repair(queue: Any) -> int:
    """Look for broken sequences of a queue as a worker does, and return how many items go on."""
    return queue._run(repairs.repair_in_turn)  # type: ignore[no-any-return]


def mark_end(queue: Any) -> None:
    """Put the mark behind the last item that a claim of a long queue puts there."""
    context = queue._context
    context.state.claim_hints.fast = True
    context.state.claim_hints.floors = {0: claim_hints.LowerBound(context.broker.clock.now())}
    context.state.claim_hints.looked_at = time.monotonic()
    queue._driver.run(first_due._write_end_markers, context)
    context.state.claim_hints.fast = False


def flush(broker: mongoq.Broker) -> None:
    """Write the counters of this process."""
    broker._driver.run(counters.flush, broker._context)


def sweep(broker: mongoq.Broker) -> bool:
    """Look for idle queues."""
    return broker._driver.run(admin.sweep, broker._context)


def halt(broker: mongoq.Broker, run: ObjectId) -> None:
    """Tell the tasks of a run on Spark to end."""
    broker._driver.run(document_lease.halt, broker._context, run)


def is_halted(broker: mongoq.Broker, run: ObjectId) -> bool:
    return broker._driver.run(document_lease.is_halted, broker._context, run)


def task_beats(broker: mongoq.Broker, run: ObjectId) -> None:
    """Write the record of a worker that is a task of a run on Spark."""
    name = f"{broker._context.identity}/1000"
    now, every = broker._context.clock.now(), timedelta(seconds=5)
    broker._run(heartbeats.beat, name, started=now, every=every, queues={"jobs": 0}, run=run)


def tasks_of(broker: mongoq.Broker, run: ObjectId) -> int:
    return broker._driver.run(heartbeats.workers_of, broker._context, run)


class Reader:
    """A query of Spark that reads the queue ``events``: its driver's process, on a clock that the test moves."""

    def __init__(self, collection: Any, clock: mongoq.VirtualClock) -> None:
        self.broker = mongoq.Broker(collection, clock=clock)
        self.queue = self.broker.queue("events")
        self.context = self.queue._context
        self.run: Any = None

    def perform(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        return self.broker._driver.run(work, *args, **options)

    def begin(self, consumer: str) -> Any:
        self.run = self.perform(streams.open_run, self.broker._context, consumer, self.queue.name, RUN)
        return self.run

    def has_begun(self) -> bool:
        """Tell whether the last run began; else another one holds the consumer."""
        return isinstance(self.run, StreamRun)

    def claim(self, n: int = 100, *, after: int = 0) -> Any:
        return self.perform(streams.next_claim, self.context, self.run, n, None, after=after)

    def settle(self, number: int) -> Any:
        return self.perform(streams.settle_claim, self.context, self.run, number)

    def affirm(self) -> Any:
        claim = self.run.claim
        return self.perform(extend_held, self.broker._context, claim.token, claim.ids, LEASE)

    def give_back(self) -> None:
        """End the run in good order; its claim stays with the consumer."""
        self.perform(document_lease.give_back, self.broker._context, self.run)

    def note(self, text: str) -> None:
        consumer, token = self.run.consumer, self.run.claim.token
        self.perform(streams.write_note, self.broker._context, consumer, token, text)

    def noted(self) -> str | None:
        consumer, token = self.run.consumer, self.run.claim.token
        note, _ = self.broker._driver.run(streams.read_notes, self.broker._context, consumer, token)
        return note

    def die_in_claim(self, collection: Any, n: int) -> None:
        """Claim as many items as that, and die when they are reserved and their ids are not written yet."""
        before = collection.count_documents({"q": self.queue.name, "reserved": True})
        performer: Any = self.broker._driver._performer
        perform, undo = performer.perform, performer.undo_all

        def perform_and_die(*args: Any) -> Any:
            reply = perform(*args)
            if collection.count_documents({"q": self.queue.name, "reserved": True}) > before:
                raise _Killed
            return reply

        performer.perform, performer.undo_all = perform_and_die, lambda *_: None
        try:
            with suppress(_Killed):
                self.perform(streams.next_claim, self.context, self.run, n, None, after=0)
        finally:
            performer.perform, performer.undo_all = perform, undo


class _Killed(BaseException):
    """The process has ended here."""
