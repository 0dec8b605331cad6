# Generated from mongoq/aio/inspection.py by scripts/unasync.py. Do not edit.
"""Inspection: reads for people and for monitoring, over all queues of a collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from mongoq.core.coordination.heartbeats import WorkerRecord
from mongoq.core.history.query import BoundedCount
from mongoq.core.insight import QueueInsight, StoredSettings
from mongoq.core.settle.settle import graveyard
from mongoq.core.state.context import BrokerContext, QueueContext
from mongoq.core_threads import insight
from mongoq.core_threads.base import bootstrap
from mongoq.core_threads.coordination import heartbeats, schedules
from mongoq.core_threads.history import mistaken
from mongoq.core_threads.sequence import hold
from mongoq.data.arguments import Id, object_id, queue_name
from mongoq.data.item import Document, Item, id_key
from mongoq.data.schedule.definition import ScheduleRecord
from mongoq.data.settings import queue_options
from mongoq.drivers.threads.driver import Runner, ThreadDriver
from mongoq.sync.queue import DeadQueue

T = TypeVar("T")
P = ParamSpec("P")
BUDGET = 100_000
"""Items that one read of all queues may examine, by default."""
LEAST_SECONDS = 0.001
"""Time limit of a read whose time is over: the driver takes 0 for no limit."""


class Inspection(Runner[BrokerContext]):
    """Reads of a collection that change nothing, made by ``broker.inspect``; the command line and the web use them.

    Counts are bounded: they say "at least" where a count ended at its limit. A queue is known if it holds an item, live
    or processed, has settings or counters, or is bound to a topic. ``QueueUnknown`` is raised for a named queue that is
    not, ``ScheduleUnknown`` for a schedule.
    """

    def __init__(self, driver: ThreadDriver, context: BrokerContext, within: timedelta | None) -> None:
        super().__init__(driver, context)
        self._until = None if within is None else time.monotonic() + within.total_seconds()

    def _read(self, work: Callable[Concatenate[BrokerContext, P], T], *args: P.args, **options: P.kwargs) -> T:
        if self._until is None:
            return self._run(work, *args, **options)
        left = max(LEAST_SECONDS, self._until - time.monotonic())
        return self._run_within(left, work, *args, **options)

    def now(self) -> datetime:
        """Return the time by the server's clock, which leases and dates follow (one command, if any)."""
        self._read(bootstrap.ensure_broker_ready, write=False)
        return self._context.clock.now()

    # --- queues -----------------------------------------------------------------------------------

    def queues(self, names: Iterable[str] | None = None, *, budget: int = BUDGET) -> list[QueueInsight]:
        """Return the state of all queues, or of the named ones, in order of their names (``find``, ``aggregate``).

        Some reads of control documents, and one ``aggregate`` for each 25 to 100 queues. ``budget`` items are examined,
        at most, but about 40 for each queue in any case.
        """
        return self._read(insight.read_queues, names, budget=budget)

    def events(self, names: Iterable[str] | None = None) -> dict[str, dict[str, int]]:
        """Return the counts of events of all queues, or of the named ones (``find``); items are not counted."""
        return self._read(insight.read_events, names)

    def settings(self, queue: str) -> StoredSettings:
        """Return the settings of a queue, and which of them are stored (``find``).

        Raises:
            CollectionUnsuitable: another program has stored settings that cannot be used.
        """
        return self._read(insight.read_settings, queue)

    def is_known(self, queue: str) -> bool:
        """Return whether a queue is known (one to four ``find``)."""
        return self._read(mistaken.is_known, queue_name(queue))

    def check_known(self, queue: str) -> None:
        """Raise ``QueueUnknown`` for a queue that is not known; the error names similar ones (``find``)."""
        self._read(mistaken.refuse_unknown, queue_name(queue))

    def explain_no_history(self, queue: str) -> str | None:
        """Return how to have a queue keep its processed items (``find``); ``None`` if it does."""
        return self._read(_of_queue(mistaken.explain_no_history, queue))

    def dead_queue(self, name: str, *, exact: bool = False) -> DeadQueue:
        """Return the handle of the dead letters of a queue or stage, wherever they are (``find``, ``aggregate``).

        The name may be that of a dead queue itself, and is that with ``exact``, whatever it holds. Otherwise the
        letters are in the queue's own dead queue, or, while that holds none, in the error queue of a pipeline; then the
        handle selects those of this queue or stage alone.

        Raises:
            QueueUnknown: no queue has this name, and no stage that has letters.
            ArgumentInvalid: the queue has no dead queue, or several error queues hold its letters.
        """
        found, letters_of = self._read(insight.find_dead_queue, name, exact=exact)
        return DeadQueue(self._driver, replace(graveyard(self._context, found), letters_of=letters_of))

    # --- items ------------------------------------------------------------------------------------

    def item(self, id: Id) -> Item[Any] | None:
        """Return an item of any queue, live, in history or with only its id remembered, or ``None`` (``find``).

        Of a document that cannot be decoded it is the readable part; ``Item.problem`` says what is wrong.
        """
        return self._read(insight.find_item, object_id(id))

    def has_key(self, queue: str, key: str) -> bool:
        """Return whether a live item of a queue has this key (``find``)."""
        return self._read(insight.find_keyed, queue_name(queue), key)

    def blockers(self, items: Sequence[Item[Any]]) -> dict[str | None, list[Document]]:
        """Return what the blocked ones among items of one queue wait for: ids and states, by sequence.

        Dead letters that hold a sequence come first, in the state ``"dead"``. Two ``find`` and an ``aggregate`` for
        each 1,000 sequences; nothing without blocked items.
        """
        return self._read(_of_queue(insight.find_blockers, items[0].queue), items) if items else {}

    def holders(self, items: Sequence[Item[Any]]) -> list[bool]:
        """Return for each of some items of one queue whether it is a dead letter that holds its sequence (``find``)."""
        holding = self._read(_of_queue(hold.find_held_letters, items[0].queue), items) if items else set()
        return [id_key(item.id) in holding for item in items]

    # --- workers, schedules, faults ---------------------------------------------------------------

    def workers(self) -> list[WorkerRecord]:
        """Return the last heartbeats of the workers, as ``broker.workers`` (``find``)."""
        return self._read(heartbeats.workers)

    def schedules(self) -> list[ScheduleRecord]:
        """Return all schedules, as ``broker.schedules`` (``find``)."""
        return self._read(schedules.list_schedules)

    def schedule(self, name: str) -> ScheduleRecord:
        """Return one schedule (``find``)."""
        return self._read(schedules.find_schedule, name)

    def unusable(self) -> list[str]:
        """Return what other programs have stored that calls of queues refuse, a sentence each (two ``find``)."""
        return self._read(insight.find_unusable)

    def stuck_sequences(self) -> dict[str, BoundedCount]:
        """Count the sequences of each queue that need a repair, among the first 1,000 of each (``find``)."""
        return self._read(insight.find_stuck)

    def held_sequences(self) -> dict[str, BoundedCount]:
        """Count the sequences of each queue that dead letters hold, up to 1,000 of each (``find``).

        Queues without are left out. Letters that are gone count until the next repair.
        """
        return self._read(insight.count_held)


def _of_queue(
    work: Callable[Concatenate[QueueContext[Any], P], T], queue: str
) -> Callable[Concatenate[BrokerContext, P], T]:
    """Return a read of one queue as a read of its broker, in whose time limit it is."""

    def read(broker: BrokerContext, /, *args: P.args, **options: P.kwargs) -> T:
        return work(QueueContext(broker, queue_options(queue), broker.untyped), *args, **options)

    return read
