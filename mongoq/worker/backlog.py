"""The backlog of a consumer: what waits for a run, what runs, and what is to be settled. Decisions, and no I/O."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Failed, Outcome, Release
from mongoq.protocol.flow.event import WakeEvent
from mongoq.protocol.settle.extend_leases import ExtendedItems
from mongoq.worker.byte_limit import ByteLimit
from mongoq.worker.circuit_breaker import CircuitBreaker
from mongoq.worker.consumer import Consumer
from mongoq.worker.handler_call import HandlerCall
from mongoq.worker.leases import Lease, Leases
from mongoq.worker.prefetch_sizer import PrefetchSizer

__all__ = ["Backlog", "ItemOutcome"]

ItemOutcome = tuple[Item[Any], Outcome | None]

RECENT_CLAIM_SECONDS = 1.0
"""Seconds after a claim that got all it asked for in which the next one is expected to get something as well."""
MAX_UNSETTLED = 2_000
"""Items that wait to be settled, or are just being settled, before no more are claimed: the server is slower than the
handler."""


class Backlog:
    """What a consumer holds, on the way from its claim to its settlement; shared by the loops of its station.

    Attributes:
        settle_event: rings when there is something to settle; several backlogs may share it.
        fetch_event: rings when there may be room for more.
        closed: nothing is started any more.
        verdicts: what is to be settled, and how.
        put_off: how many of those were put off when they were to be settled the last time.
        running: the runs under way.
        idle: the bells of runners that wait for something to do.
    """

    def __init__(self, consumer: Consumer, settle_event: WakeEvent | None = None) -> None:
        self._consumer = consumer
        self._size = consumer.batch or 1
        self._lock = Lock()
        self._waiting: deque[Item[Any]] = deque()
        self._leases = Leases()
        self._sizer = PrefetchSizer(consumer.prefetch, least=self._size)
        self._byte_limit = ByteLimit(consumer.prefetch_bytes)
        self._breaker = CircuitBreaker(consumer.retry) if consumer.probe else None
        # without a handler all that is claimed is to be settled at once, unless it may belong to what comes next
        quick = consumer.claims is not None and consumer.settle_group is None
        self._max_unsettled = self._size if quick else max(MAX_UNSETTLED, self._size)
        self.settle_event, self.fetch_event = settle_event or WakeEvent(), WakeEvent()
        self._filled_at = float("-inf")
        self.put_off = 0
        self.closed = False
        self.verdicts: list[ItemOutcome] = []
        self.running: set[HandlerCall] = set()
        self.idle: dict[WakeEvent, None] = {}

    @property
    def held(self) -> int:
        """How many items are held."""
        return self._leases.items

    @property
    def is_at_work(self) -> bool:
        """Say whether an item is held, or one that was lost still runs; nobody waits for a run that has timed out."""
        return bool(self._leases.items) or any(not run.timed_out for run in list(self.running))

    @property
    def _is_stuck(self) -> bool:
        """Say whether handlers that do not end have taken all places of the consumer."""
        return sum(run.timed_out for run in self.running) >= self._consumer.concurrency

    @property
    def is_probing(self) -> bool:
        """Say whether the handler keeps failing, and one item at a time is tried."""
        return self._breaker is not None and self._breaker.is_open

    def room(self) -> int:
        """Return how many items to claim now."""
        with self._lock:
            now, waiting, running = time.monotonic(), len(self._waiting), len(self.running)
            if self.closed or self._is_stuck or self._count_unsettled() > self._max_unsettled:
                return 0
            if self._breaker is not None and self._breaker.is_open:
                return int(not self._leases.items and not self._breaker.pause(now))
            self._sizer.adjust(now, waiting)
            ahead = self._sizer.target
            wanted = max(self._consumer.concurrency - running, 0) * self._size + ahead - waiting
            return self._byte_limit.claim_size(wanted, self._leases.bytes) if wanted > 0 and wanted * 2 >= ahead else 0

    def _count_unsettled(self) -> int:
        """Return of how many items the runs have ended; those that are just being settled are held as well."""
        under_way = sum(len(run.items) for run in self.running if not run.timed_out)
        return self._leases.items - len(self._waiting) - under_way

    def is_filling(self) -> bool:
        """Say whether more items are about to come: some wait or run, or the queue has more.

        There is room for them unless too many were put off; the others that are just being settled will be gone.
        """
        with self._lock:
            if self.closed:
                return False
            has_more = time.monotonic() - self._filled_at < RECENT_CLAIM_SECONDS and self.put_off <= self._max_unsettled
            return bool(self._waiting or self.running) or has_more

    def pause(self, most: float) -> float:
        """Return for how many seconds to rest when there is no room."""
        pause = self._breaker.pause(time.monotonic()) if self._breaker is not None else 0.0
        return min(pause, most) if pause else most

    def add(
        self, items: Sequence[Item[Any]], lease: timedelta, *, asked: int, seconds: float = 0.0, back: bool = False
    ) -> int:
        """Take in what was claimed in so many seconds, or give it ``back``; returns for how many runs it is enough.

        Items beyond the limit of bytes are given back as well.
        """
        with self._lock:
            fitting = self._byte_limit.count_fitting(items, self._leases.bytes)
            self._leases.add(items, lease)
            now, full = time.monotonic(), len(items) >= asked
            self._sizer.record_claim(now, full=full, seconds=seconds)
            self._filled_at = now if full else float("-inf")
            if self.closed or back or self._is_stuck:
                self._release(items)
                self.settle_event.ring()
                return 0
            self._waiting.extend(items[:fitting])
            if fitting < len(items):
                self._release(items[fitting:])
                self.settle_event.ring()
            return -(-len(self._waiting) // self._size)

    def refuse(self, item: Item[Any], lease: timedelta, outcome: Outcome | None) -> None:
        """Take in an item that cannot be run, and is settled at once."""
        with self._lock:
            self._leases.add([item], lease)
            self.verdicts.append((item, outcome))
        self.settle_event.ring()

    def next_call(self, bell: WakeEvent) -> HandlerCall | None:
        """Return the next run; when there is none, ``bell`` rings as soon as there may be one."""
        with self._lock:
            waiting = self._waiting
            if not waiting or self.closed:
                bell.rung = False
                self.idle[bell] = None
                return None
            items = [waiting.popleft() for _ in range(min(self._size, len(waiting)))]
            self.idle.pop(bell, None)
            run = HandlerCall(items, time.monotonic())
            if not waiting:
                self._sizer.record_empty(run.started)
            self.running.add(run)
            if len(waiting) * 2 <= self._sizer.target and not self.fetch_event.rung:
                self.fetch_event.ring()
            return run

    def wake(self, number: int) -> int:
        """Ring for so many runners; returns for how many there was none."""
        with self._lock:
            bells = [self.idle.popitem()[0] for _ in range(min(number, len(self.idle)))]
        for bell in bells:
            bell.ring()
        return number - len(bells)

    def finish(self, run: HandlerCall, outcomes: Sequence[Outcome | None]) -> bool:
        """Take note of what a run came to; says whether anybody still wanted to know."""
        with self._lock:
            self.running.discard(run)
            if run.timed_out:
                self.fetch_event.ring()  # its place is free again
            if run.abandoned or run.timed_out:
                return False
            for item, outcome in zip(run.items, outcomes, strict=True):
                if not run.lost or id_key(item.id) not in run.lost:
                    self.verdicts.append((item, outcome if self._breaker is None else self._apply_breaker(outcome)))
            if self._breaker is not None and self._breaker.is_open:
                self._release_waiting()
        if not self.settle_event.rung:
            self.settle_event.ring()
        return True

    def time_out(self, run: HandlerCall, outcomes: Sequence[Outcome | None] | None) -> bool:
        """Let the leases of a run end, and ignore its result; says whether it was still under way.

        With ``outcomes`` its items are settled so, since they are in no queue that they could come back in. What waits
        for a run is given back when no place is left where it could run, or when the handler is to be probed.
        """
        with self._lock:
            if run not in self.running or run.abandoned or run.timed_out:
                return False
            run.timed_out = True
            if outcomes is None:
                for item in run.items:
                    self._leases.drop(item)
            else:
                self.verdicts += zip(run.items, outcomes, strict=True)
            if self._breaker is not None:
                self._breaker.record_failure(time.monotonic())
            if self._is_stuck or self._breaker is not None:
                self._release_waiting()
        self.settle_event.ring()
        return True

    def _apply_breaker(self, outcome: Outcome | None) -> Outcome | None:
        assert self._breaker is not None
        if not isinstance(outcome, Failed):
            self._breaker.record_success()
            return outcome
        if self._breaker.record_failure(time.monotonic()):
            return outcome
        return Failed(outcome.error, outcome.delay, counted=False)

    def take_verdicts(self) -> list[ItemOutcome]:
        """Take what is to be settled now, each item with the end of its lease.

        An item that was claimed again before its first run could be settled has two verdicts, of which one is void. The
        second one is left for the next time: what becomes of items together is told by their ids.
        """
        with self._lock:
            first: dict[Any, ItemOutcome] = {}
            rest: list[ItemOutcome] = []
            for verdict in self.verdicts:
                if first.setdefault(id_key(verdict[0].id), verdict) is not verdict:
                    rest.append(verdict)
            self.verdicts = rest
            current = self._leases.current
            return [(current(item), outcome) for item, outcome in first.values()]

    def put_back(self, verdicts: Iterable[ItemOutcome]) -> None:
        """Put back what could not be settled, to be tried again."""
        with self._lock:
            self.verdicts[:0] = verdicts

    def drop(self, items: Iterable[Item[Any]]) -> None:
        """Let go of what was settled, or is lost."""
        with self._lock:
            for item in items:
                self._leases.drop(item)
        if not self.fetch_event.rung:
            self.fetch_event.ring()

    def release_waiting(self) -> None:
        """Give back what was not started."""
        with self._lock:
            self._release_waiting()
        self.settle_event.ring()

    def close(self) -> None:
        """Start nothing more, and give back what was not started."""
        with self._lock:
            self.closed = True
            self._release_waiting()
        self.settle_event.ring()
        self.fetch_event.ring()
        self.wake(len(self.idle))

    def abandon(self) -> list[HandlerCall]:
        """Give back what runs as well; late results are ignored. Returns those runs."""
        with self._lock:
            runs = list(self.running)
            for run in runs:
                run.abandoned = True
                if run.timed_out:
                    continue  # its items come back when their leases end
                self._release(item for item in run.items if id_key(item.id) not in run.lost)
            self.running.clear()
        self.settle_event.ring()
        return runs

    def _release_waiting(self) -> None:
        self._release(self._waiting)
        self._waiting.clear()

    def _release(self, items: Iterable[Item[Any]]) -> None:
        self.verdicts += [(item, Release()) for item in items]

    def is_due(self, now: datetime) -> bool:
        """Say whether a lease is to be extended now."""
        with self._lock:
            return self._leases.is_due(now)

    def due(self, now: datetime) -> list[tuple[Lease, ExtendedItems]]:
        """Return the leases that are to be extended now, or soon."""
        with self._lock:
            return self._leases.due(now)

    def set_lease_end(self, lease: Lease, until: datetime) -> None:
        """Take note of the new end of a lease."""
        with self._lock:
            lease.until, lease.is_extended = until, True

    def split_leases(self, items: Iterable[Item[Any]]) -> None:
        """Take note of items that a handler has extended by itself: their leases end when they say."""
        with self._lock:
            for item in items:
                self._leases.split(item)

    def lose(self, token: Any, key: Any) -> HandlerCall | Item[Any] | None:
        """Take note that somebody else has an item; returns the run that had it, or the item when it waited.

        ``None`` when it is being settled or taken out of its queue, which will tell, or was.
        """
        with self._lock:
            item = self._leases.find(token, key)
            if item is None:
                return None
            for run in list(self.running):
                if not run.pops and any(one is item for one in run.items):
                    run.lost.add(key)
                    self._leases.drop(item)
                    return run
            if any(one is item for one in self._waiting):
                self._waiting.remove(item)
                self._leases.drop(item)
                return item
            return None
