"""Backlog of a consumer: items that wait for a run, running items, and items to settle. It decides and does no I/O.

It also knows the leases of these items, and finds the number of items to claim ahead.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from mongoq.core.command import WakeEvent
from mongoq.core.settle.apply_outcomes import ItemOutcome
from mongoq.core.settle.by_token import ExtendedItems
from mongoq.data.arguments import duration
from mongoq.data.item import Item, id_key, reservation_key
from mongoq.data.outcomes import Failed, Later, Release, ResolvedOutcome, RetryPolicy
from mongoq.worker.consumer import Consumer


class SettledCounts:
    """Counts settled items.

    Attributes:
        endings: number of items by result, such as ``done`` or ``dead``.
        first: monotonic time of the first count; ``None`` before.
        last: monotonic time of the latest count; ``None`` before.
    """

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self.first: float | None = None
        self.last: float | None = None

    def add(self, endings: Iterable[str]) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.endings.update(endings)


RECENT_CLAIM_SECONDS = 1.0
"""Seconds after a full claim in which the next claim is expected to return items as well."""
MAX_PREFETCH = 2_000
"""Maximum number of waiting items, unless the consumer sets one: two claims, so that one can be under way."""
FAST_SECONDS = 0.2
"""The prefetch grows when a full claim was used up within this time, in seconds, or within the time of its claim."""
SLOW_SECONDS = 1.0
"""The prefetch shrinks when items of a claim still wait after this time in seconds."""
GROWTH_FACTOR = 4
EXTENSION_DUE_SHARE = 2 / 3
"""Share of a lease that is left when its extension is due."""
EXTENSION_EARLY_SHARE = 5 / 6
"""Share that is left when a lease is extended along with due ones, to save a command."""
MAX_UNSETTLED = 2_000
"""Unsettled items (waiting or in a settle command) above which claims pause: the server is slower than the handler."""
MAX_TRY_PAUSE_SECONDS = 30.0
"""Longest pause between two tries, in seconds: the remote system may be back."""
MAX_REMEMBERED = 1_000
"""Failed items that a circuit breaker remembers: with so many, another one comes in any case."""


@dataclass(slots=True, eq=False)
class Lease:
    """Lease of items that were claimed together, under one token, or of one that its handler has extended itself.

    Attributes:
        token: fencing token of the claim.
        length: time from an extension to the next end.
        until: current end; changes with each extension.
        is_extended: True if ``until`` is later than the end that the item objects carry.
    """

    token: Any
    length: timedelta
    until: datetime
    is_extended: bool = False


@dataclass(slots=True, eq=False, repr=False)
class HandlerCall:
    """One call of a handler.

    Attributes:
        items: items of the call; one, unless the consumer takes batches.
        started: start time on the monotonic clock.
        context: context that the handler runs in; set right before the call.
        where: thread id or task that runs the handler; set by the executor.
        ended: True after the handler has returned or raised; set by the executor.
        job: job passed to the handler; ``None`` if the handler takes none.
        lost: ids (``id_key``) of items that another worker has by now; set by the backlog.
        pops: True once the item leaves its queue for good: its absence from the queue is no loss then.
        abandoned: True after the worker has released the items and no longer waits for the call.
        reports: number of log lines about the time that it takes.
        timed_out: True after ``max_time`` when the consumer gives such calls up; their leases are not extended.
    """

    items: list[Item[Any]]
    started: float
    context: Any = None
    where: Any = None
    ended: bool = False
    job: Any = None
    lost: set[Any] = field(default_factory=set)
    pops: bool = False
    abandoned: bool = False
    reports: int = 0
    timed_out: bool = False

    @property
    def outcomes(self) -> list[ResolvedOutcome] | None:
        """Outcomes that were found inside of hooks; ``None`` if there are none."""
        return None if self.job is None else self.job._outcomes

    @property
    def is_in_handler(self) -> bool:
        """True while the handler runs."""
        return self.where is not None and not self.ended

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started


class CircuitBreaker:
    """Circuit breaker of a consumer with ``probe``: while it is open, one item at a time is tried.

    It opens when two different items have failed, with no success between: the items are not at fault then.

    One item that fails again and again is at fault itself, and opens nothing.

    Attributes:
        is_open: True from such a failure to the next success.
    """

    def __init__(self, retry: RetryPolicy) -> None:
        self._retry = retry
        self._failed = Counter[Any]()
        self._tries = 0
        self._resume_at = float("-inf")

    @property
    def is_open(self) -> bool:
        return len(self._failed) > 1

    def record_failure(self, key: Any, now: float) -> float | None:
        """Record a failure of an item; returns ``None`` if it counts as an attempt.

        If not, returns for how many seconds at least the item has to wait, so that others are tried before it: without
        that, items of a higher priority that fail every time would be the only ones.
        """
        if key in self._failed or len(self._failed) < MAX_REMEMBERED:
            self._failed[key] += 1
        if not self.is_open:
            return None
        self._tries += 1
        pause = min(self._retry.delay(self._tries).total_seconds(), MAX_TRY_PAUSE_SECONDS)
        self._resume_at = now + pause
        return pause * min(self._failed[key], len(self._failed))

    def record_success(self) -> None:
        """Close the circuit."""
        self._failed.clear()
        self._tries = 0

    def pause(self, now: float) -> float:
        """Return the seconds until the next item may be tried."""
        return max(0.0, self._resume_at - now) if self.is_open else 0.0


class Backlog:
    """Items that a consumer holds, from claim to settlement; shared by the threads or tasks of one consumer loop.

    Attributes:
        settle_event: wakes the settle loop when there is something to settle; the backlogs of a settle group share it.
        fetch_event: wakes the fetch loop when there may be room for more items.
        closed: True after ``close``; no further run starts.
        claiming: True while a claim is under way or may follow; False after the fetch loop has ended.
        outcomes: items to settle, each with its outcome.
        put_off: number of items that the last settlement put off; set by the settler.
        is_dry: True while the fetch loop waits, and its last claim has found nothing; set by the fetcher.
        coming: number of items that a settlement under way hands over; set by the hand-over.
        running: handler calls under way.
        idle: wake events of runners without work, in the order of their waiting.
        is_limited: True while the queue has limits: then nothing is claimed ahead. Set by ``set_limit``.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._size = consumer.batch or 1
        self._lock = Lock()
        self._waiting: deque[Item[Any]] = deque()
        # Unsettled items, by ``reservation_key``: hashing an ObjectId takes longer than all the rest of a lookup.
        self._held: dict[Any, tuple[Item[Any], Lease]] = {}
        self._bytes = self._expected_bytes = 0
        self._prefetch = self._size if consumer.prefetch is None else consumer.prefetch
        self._claimed_at = self._empty_at = float("-inf")
        self._fast_seconds, self._is_full = FAST_SECONDS, False
        self.is_limited, self._max_call = False, self._size
        self._breaker = CircuitBreaker(consumer.retry) if consumer.probe else None
        # Without a handler a claimed item can be settled at once, unless it may belong to a later one (settle group).
        group = consumer.settle_group
        quick = consumer.claims is not None and group is None
        self._max_unsettled = self._size if quick else max(MAX_UNSETTLED, self._size)
        self.settle_event = WakeEvent() if group is None else group.settle_event
        self.fetch_event = WakeEvent()
        self._filled_at = float("-inf")
        self.put_off = 0
        self.is_dry, self.coming = False, 0
        self.closed, self.claiming = False, True
        self.outcomes: list[ItemOutcome] = []
        self.running: set[HandlerCall] = set()
        self._unsettled = consumer.context.broker.unsettled
        self._settled_by_handlers: set[Any] = set()
        self.idle: dict[WakeEvent, None] = {}

    @property
    def held(self) -> int:
        return len(self._held)

    def holds(self, item: Item[Any]) -> bool:
        """Return whether an item is not settled yet."""
        return reservation_key(item) in self._held

    @property
    def waiting(self) -> int:
        """Number of items that wait for a run."""
        return len(self._waiting)

    @property
    def occupied(self) -> int:
        """Number of items that wait for a run or run; those that are only to be settled need no permit."""
        with self._lock:  # an item that begins to run at this moment is in one of them
            return len(self._waiting) + sum(len(run.items) for run in self.running)

    def set_limit(self, *, is_limited: bool, max_call: int | None) -> None:
        """Follow the limits of the queue; ``max_call`` is the number of items that one call may take."""
        self.is_limited, self._max_call = is_limited, min(self._size, max_call or self._size)

    @property
    def is_at_work(self) -> bool:
        """True while an item is held or a lost item still runs; calls that timed out do not count."""
        return bool(self._held) or any(not run.timed_out for run in list(self.running))

    @property
    def is_over(self) -> bool:
        """True when nothing more will come to be settled, also by a call that is being cancelled."""
        return self.closed and not (self.held or self.claiming or self.running)

    @property
    def is_stuck(self) -> bool:
        """True when calls that timed out and have not ended take all the concurrency of the consumer."""
        return sum(run.timed_out for run in list(self.running)) >= self._consumer.concurrency

    @property
    def is_probing(self) -> bool:
        """True while the circuit breaker is open: one item at a time is tried."""
        return self._breaker is not None and self._breaker.is_open

    def room(self) -> int:
        """Return how many items to claim now."""
        with self._lock:
            now, waiting = time.monotonic(), len(self._waiting)
            if self.closed or self.is_stuck or self._count_unsettled() > self._max_unsettled:
                return 0
            if self._breaker is not None and self._breaker.is_open:
                return int(not self._held and not self._breaker.pause(now))
            if self.is_limited:
                wanted = (self._consumer.concurrency - len(self.running)) * self._max_call - waiting
            else:
                if self._consumer.prefetch is None:  # follow how long the items of the last claim have waited
                    age = now - self._claimed_at
                    lasted = self._empty_at - self._claimed_at if self._empty_at >= self._claimed_at else age
                    if not waiting and self._is_full and lasted < self._fast_seconds:
                        self._prefetch = max(min(self._prefetch * GROWTH_FACTOR, MAX_PREFETCH), self._size)
                        self._is_full = False
                    elif waiting and age > SLOW_SECONDS:
                        self._prefetch, self._claimed_at = max(self._prefetch // 2, self._size), now
                wanted = self._count_wanted()
                if wanted * 2 < self._prefetch:
                    return 0  # until half of it is missing: a few large claims cost less than many small ones
            most = self._consumer.prefetch_bytes
            if most is not None and self._expected_bytes:
                wanted = min(wanted, max((most - self._bytes) // self._expected_bytes, 0 if self._bytes else 1))
            return max(wanted, 0)

    def room_left(self, n: int) -> int:
        """Return how many of ``n`` items a claim that has waited may still take: others may have been handed over."""
        with self._lock:
            return max(min(n, self._count_wanted()), 0)

    def _count_wanted(self) -> int:
        """Return how many items may be claimed to run, and ahead."""
        free = max(self._consumer.concurrency - len(self.running), 0)
        return free * self._size + self._prefetch - len(self._waiting) - self.coming

    def has_nothing_to_run(self) -> bool:
        """Return whether a run is free, no item waits or comes for it, and the queue has none either."""
        with self._lock:
            is_free = len(self.running) + self.coming < self._consumer.concurrency and not self._waiting
            return self.is_dry and is_free and not (self.closed or self.is_limited)

    def _count_unsettled(self) -> int:
        """Return the number of items whose calls have ended, items in a settle command included."""
        under_way = sum(len(run.items) for run in self.running if not run.timed_out)
        return len(self._held) - len(self._waiting) - under_way

    @property
    def has_unsettled(self) -> bool:
        """True while outcomes are to be sent, or are under way."""
        with self._lock:
            return self._count_unsettled() > 0

    def is_filling(self) -> bool:
        """Return whether more items are about to come: some wait or run, or the queue has more.

        There is room for more unless too many items were put off; items in a settle command will leave soon.
        """
        with self._lock:
            if self.closed:
                return False
            has_more = time.monotonic() - self._filled_at < RECENT_CLAIM_SECONDS and self.put_off <= self._max_unsettled
            return bool(self._waiting or self.running) or has_more

    def pause(self, most: float) -> float:
        """Return the seconds to rest when there is no room, at most ``most``."""
        pause = 0.0 if self._breaker is None else self._breaker.pause(time.monotonic())
        return min(pause or most, most)

    def add(
        self, items: Sequence[Item[Any]], lease: timedelta, *, asked: int, seconds: float = 0.0, back: bool = False
    ) -> int:
        """Add items that a claim returned after ``seconds``, or release them if ``back``.

        Items beyond the byte limit are released as well. Returns the number of calls that the waiting items allow.
        """
        with self._lock:
            now, full = time.monotonic(), len(items) >= asked
            sizes, most, fitting = [item._size for item in items], self._consumer.prefetch_bytes, len(items)
            # Halved with each claim, not replaced: a few large items among many small ones stay remembered for a while.
            self._expected_bytes = max(max(sizes, default=0), self._expected_bytes // 2)
            if most is not None and self._bytes + sum(sizes) > most:
                fitting, total = 0, self._bytes
                while fitting < len(sizes) and (total + sizes[fitting] <= most or total == 0):
                    total += sizes[fitting]
                    fitting += 1
            if self._breaker is not None and self._breaker.is_open:  # maybe only since the claim began
                fitting = min(fitting, int(not self._held and not self._breaker.pause(now)))
            if self.closed or back or self.is_stuck:
                fitting = 0
            self._hold(items, lease)
            self._claimed_at, self._is_full, self._fast_seconds = now, full, max(FAST_SECONDS, seconds)
            self._filled_at = now if full else float("-inf")
            self._waiting.extend(items[:fitting])
            if fitting < len(items):
                self._release(items[fitting:])
                self.settle_event.set()
            return -(-len(self._waiting) // self._max_call)

    def _hold(self, items: Iterable[Item[Any]], length: timedelta) -> None:
        """Hold claimed items, those under one token under one lease."""
        lease = None
        for item in items:
            if lease is None or item.token is not lease.token:  # the items of one claim share the object of their token
                assert item.lease_until is not None
                lease = Lease(item.token, length, item.lease_until)
            self._held[reservation_key(item)] = item, lease
            self._bytes += item._size

    def _drop(self, item: Item[Any]) -> None:
        entry = self._held.pop(reservation_key(item), None)
        if entry is not None:
            self._bytes -= entry[0]._size

    def refuse(self, outcomes: Sequence[ItemOutcome], lease: timedelta) -> None:
        """Add items that cannot run, with their outcomes, to be settled at once."""
        with self._lock:
            self._hold([item for item, _ in outcomes], lease)
            self.outcomes += outcomes
        self.settle_event.set()

    def next_call(self, event: WakeEvent) -> HandlerCall | None:
        """Return the next call; if there is none, ``event`` is set as soon as there may be one."""
        with self._lock:
            waiting = self._waiting
            if not waiting or self.closed:
                # Within the lock: ``add`` and ``wake`` come before or after both, so no item is left without a runner.
                event.was_set = False
                self.idle[event] = None
                return None
            items = [waiting.popleft() for _ in range(min(self._max_call, len(waiting)))]
            self.idle.pop(event, None)
            run = HandlerCall(items, time.monotonic())
            if not waiting:
                self._empty_at = run.started
            self.running.add(run)
            if len(waiting) * 2 <= self._prefetch and not self.fetch_event.was_set:
                self.fetch_event.set()
            return run

    def wake(self, number: int) -> int:
        """Wake up to ``number`` idle runners; returns how many runners were missing."""
        with self._lock:
            events = [self.idle.popitem()[0] for _ in range(min(number, len(self.idle)))]
        for event in events:
            event.set()
        return number - len(events)

    def judge(self, run: HandlerCall, outcomes: list[ResolvedOutcome]) -> list[ResolvedOutcome]:
        """Tell the circuit breaker how a call has ended; returns the outcomes, in an outage as ones that do not count.

        Items that were not run, or are put off, say nothing about the other side.
        """
        if self._breaker is None or run.abandoned:
            return outcomes
        judged = list(outcomes)
        with self._lock:
            for place, (item, outcome) in enumerate(zip(run.items, outcomes, strict=True)):
                key = id_key(item.id)
                if key in run.lost or isinstance(outcome, Release | Later):
                    continue
                if not isinstance(outcome, Failed):
                    self._breaker.record_success()
                elif not outcome.halts and (rest := self._breaker.record_failure(key, time.monotonic())) is not None:
                    delay = max(duration(outcome.delay, "delay"), timedelta(seconds=rest))
                    judged[place] = replace(outcome, delay=delay, counted=False)
        return judged

    def finish(self, run: HandlerCall, outcomes: Sequence[ResolvedOutcome]) -> bool:
        """Record the outcomes of a call that has ended; returns whether they still counted."""
        with self._lock:
            self.running.discard(run)
            if run.timed_out or self.is_limited:
                self.fetch_event.set()  # the place of the call, or its permit, is free again
            if run.abandoned or run.timed_out:
                return False
            for item, outcome in zip(run.items, outcomes, strict=True):
                if not run.lost or id_key(item.id) not in run.lost:
                    self.outcomes.append((item, outcome))
            if self.is_probing:
                self._release_waiting()
        if not self.settle_event.was_set:
            self.settle_event.set()
        return True

    def time_out(self, run: HandlerCall, outcomes: Sequence[ResolvedOutcome] | None) -> bool:
        """Let the leases of a call end and ignore its result; returns whether the call was still under way.

        With ``outcomes`` its items are settled: they have left the queue and could not come back. Waiting items are
        released when no place is left to run them, or when the circuit breaker is open.
        """
        with self._lock:
            if run not in self.running or run.abandoned or run.timed_out:
                return False
            run.timed_out = True
            if outcomes is None:
                for item in run.items:
                    self._drop(item)
            else:
                self.outcomes += zip(run.items, outcomes, strict=True)
            if self._breaker is not None and self._consumer.on_timeout != "cancel":  # a cancelled call has an outcome
                for item in run.items:
                    self._breaker.record_failure(id_key(item.id), time.monotonic())
            if self.is_stuck or self.is_probing:
                self._release_waiting()
        self.settle_event.set()
        return True

    def take_outcomes(self) -> list[ItemOutcome]:
        """Take the outcomes to settle now; each item carries the current end of its lease.

        An item that was claimed again before its first run was settled has two outcomes, of which one is void. The
        second one stays for the next time: results of a settle command are matched to items by id.
        """
        with self._lock:
            first: dict[Any, ItemOutcome] = {}
            rest: list[ItemOutcome] = []
            for entry in self.outcomes:
                if first.setdefault(id_key(entry[0].id), entry) is not entry:
                    rest.append(entry)
            self.outcomes = rest
            outcomes = []
            for item, outcome in first.values():
                _, lease = self._held.get(reservation_key(item), (None, None))
                outcomes.append((item.held_until(lease.until) if lease and lease.is_extended else item, outcome))
            return outcomes

    def restore(self, outcomes: Iterable[ItemOutcome]) -> None:
        """Put back outcomes that could not be settled, for another try."""
        with self._lock:
            self.outcomes[:0] = outcomes

    def drop(self, items: Sequence[Item[Any]]) -> None:
        """Drop items that were settled or lost."""
        with self._lock:
            for item in items:
                self._drop(item)
        self.forget_settled(items)
        if not self.fetch_event.was_set:
            self.fetch_event.set()

    def release_waiting(self) -> None:
        with self._lock:
            self._release_waiting()
        self.settle_event.set()

    def close(self) -> None:
        """Start no further call, and release the waiting items."""
        with self._lock:
            self.closed = True
            self._release_waiting()
        self.settle_event.set()
        self.fetch_event.set()
        self.wake(len(self.idle))

    def abandon(self) -> list[HandlerCall]:
        """Release the running items as well, and ignore late results. Returns the abandoned calls."""
        with self._lock:
            runs = list(self.running)
            for run in runs:
                run.abandoned = True
                if run.timed_out:
                    continue  # the items come back when their leases end
                self._release(item for item in run.items if id_key(item.id) not in run.lost)
            self.running.clear()
        self.settle_event.set()
        return runs

    def _release_waiting(self) -> None:
        self._release(self._waiting)
        self._waiting.clear()

    def _release(self, items: Iterable[Item[Any]]) -> None:
        self.outcomes += [(item, Release()) for item in items]

    # --- items that handlers settle themselves ---------------------------------------------------

    # The worker has lost the reservation of such an item as well, and does not log that as a loss.

    def watch(self, run: HandlerCall) -> None:
        """Begin to watch whether a handler settles the items of its call itself, perhaps in a transaction."""
        if not run.pops:
            self._unsettled.update(map(reservation_key, run.items))

    def record_settled(self, run: HandlerCall) -> None:
        """Record the items that the handler of a call that has ended has settled."""
        for key in () if run.pops else map(reservation_key, run.items):
            tentative = self._consumer.queue._sessions.take_tentative(key)
            if key not in self._unsettled or (tentative is not None and tentative.committed is not False):
                self._settled_by_handlers.add(key)
            self._unsettled.discard(key)

    def is_settled_by_handler(self, item: Item[Any], *, is_lost: bool = False) -> bool:
        """Return whether a handler has settled an item; one that is lost while it runs, perhaps in a transaction."""
        key = reservation_key(item)
        if is_lost and (key not in self._unsettled or self._consumer.queue._sessions.has_tentative(key)):
            self._settled_by_handlers.add(key)
        return key in self._settled_by_handlers

    def forget_settled(self, items: Iterable[Item[Any]]) -> None:
        if self._settled_by_handlers:
            self._settled_by_handlers.difference_update(map(reservation_key, items))

    # --- leases ----------------------------------------------------------------------------------

    def leases_to_extend(
        self, now: datetime, share: float = EXTENSION_EARLY_SHARE
    ) -> list[tuple[Lease, ExtendedItems]]:
        """Return the leases to extend: those of which less than a ``share`` is left."""
        with self._lock:
            ids: dict[Lease, list[Any]] = {}
            for item, lease in self._held.values():
                ids.setdefault(lease, []).append(item.id)
        due = [lease for lease in ids if lease.until - now < lease.length * share]
        return [(lease, ExtendedItems(lease.token, ids[lease], lease.length)) for lease in due]

    def split_leases(self, items: Iterable[Item[Any]]) -> None:
        """Give items that a handler has extended leases of their own."""
        with self._lock:
            for item in items:
                held_item, lease = self._held.get(reservation_key(item), (None, None))
                if held_item is not None and lease is not None:
                    assert item.lease_until is not None
                    own = Lease(item.token, lease.length, item.lease_until, is_extended=True)
                    self._held[reservation_key(item)] = held_item, own

    def lose(self, token: Any, key: Any) -> tuple[Item[Any], HandlerCall | None] | None:
        """Record the loss of an item to another worker; returns the item, with its call unless it waited.

        Returns ``None`` for an item that is being, or was, settled or taken out of its queue: that command reports the
        loss.
        """
        with self._lock:
            item, _ = self._held.get((key, id_key(token)), (None, None))
            if item is None:
                return None
            run = next((run for run in self.running if not run.pops and any(each is item for each in run.items)), None)
            if run is not None:
                run.lost.add(key)
            elif any(each is item for each in self._waiting):
                self._waiting.remove(item)
            else:
                return None
            self._drop(item)
            return item, run
