"""Limiter of a consumer: holds permits and slots for what it claims and starts, while its queue has limits.

It takes them from the control documents that all processes share; what it holds, it decides about without I/O. With a
``rate_key`` each key has a bucket of its own, which is known only after a claim.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import Lock
from typing import Any

from mongoq.core.claim.judge import is_expired
from mongoq.core.coordination.limits import (
    LimitContended,
    Permits,
    bucket_id,
    end_put_offs,
    give_back_slots,
    keep_permits,
    read_buckets,
    share_key_slots,
    take_permits,
    take_slots,
)
from mongoq.core.perform import sleep
from mongoq.core.state.context import QueueContext
from mongoq.data.clock import VirtualClock, milliseconds, time_of
from mongoq.data.item import Item, id_key
from mongoq.data.outcomes import Release, ResolvedOutcome
from mongoq.data.rate import Pace, Slot, Slots
from mongoq.worker.backlog import Backlog, HandlerCall
from mongoq.worker.consumer import Consumer

Refuse = Callable[[Item[Any], Exception], Any]

CLAIM_LEAD_MS = 50.0
"""Milliseconds before its slot at which an item is claimed."""
NEAR_SLOT_MS = 1_000.0
"""Milliseconds before and after its slot for which a permit is kept for an item, rather than left to other workers."""
PERMIT_LEASES = 1.5
"""Lease of permits in leases of items: they end after the items that are held under them."""
PERMIT_LEASES_LEFT = 1.25
"""The same at which it is extended before a claim."""
KNOWN_SECONDS = 0.2
"""Seconds for which permits are used without asking again: other workers may want some."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.25
"""Seconds between two tries of a limited consumer, at least and at most."""
MAX_SLOT_REST_SECONDS = 5.0
"""Seconds after which a worker looks again for slots, at most, however slow the rate is."""
REFUSED_PAUSE_SECONDS = 0.05
"""Seconds after which a worker without any permit asks again."""
BUSY_PAUSE_SECONDS = 0.002
"""Seconds between two looks whether another thread or task still changes the permits."""
MAX_KEYED_CLAIM = 100
"""Items in one claim, at most, whose rates are known only after it."""
MAX_KEYED = 10_000
"""Items whose slots are remembered, at most."""


def find_pace(context: QueueContext[Any]) -> Pace | None:
    """Return the slots of the queue's rate; exact ones under a clock that stands still."""
    return context.settings.make_pace(exact=isinstance(context.broker.clock, VirtualClock))


class Limiter:
    """Holds what a consumer may claim and start.

    Attributes:
        claiming: items that a claim under way may return, or has returned.
        is_lost: True when the lease of its permits has ended; the items held under them are to be given up.
    """

    def __init__(self, consumer: Consumer, backlog: Backlog, worker: str) -> None:
        self._consumer, self._context = consumer, consumer.context
        self._backlog = backlog
        self._by = worker
        self._lock, self._changing = Lock(), Lock()
        self._permitted = 0
        self._slots = Slots()
        self._pace: Pace | None = None
        self._lined: Pace | None = None
        self._room = 0
        self._keyed = None if consumer.rate_key is None else KeyedRates(consumer, self._lock)
        self._at_gate = 0
        self._permits: Permits | None = None
        self._document: Mapping[str, Any] | None = None
        self._asked_at = self._used_at = float("-inf")
        self._asked_limit: int | None = None
        self._resume_at = self._slots_at = float("-inf")
        self._was_limited = False
        self._adopted: Any = None
        self.claiming = 0
        self.is_lost = False

    @property
    def is_limited(self) -> bool:
        """True while the queue has limits; joins have no handler, and none."""
        return self._consumer.claims is None and self._context.settings.is_limited

    @property
    def has_rate(self) -> bool:
        """True while the queue has a rate."""
        return self._pace is not None

    @property
    def holds_permits(self) -> bool:
        """True while this worker is on the list of the queue's permits."""
        return self._permits is not None

    def pause(self) -> float:
        """Return the seconds until a claim may be tried again."""
        return min(max(self._resume_at - time.monotonic(), MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)

    def adopt(self) -> None:
        """Follow the settings of the queue; when limits begin, items that wait for a run go back.

        Each run asks; stored options that are equal keep their identity.
        """
        stored = self._context.state.stored
        if stored is self._adopted:
            return
        self._adopted = stored
        pace = find_pace(self._context) if self._consumer.claims is None else None
        if pace != self._pace:
            with self._lock:
                self._pace = pace
                self._slots = Slots()
                self._resume_at = self._slots_at = float("-inf")
                if self._keyed is not None:
                    self._keyed.clear()
        is_limited, began = self.is_limited, self.is_limited and not self._was_limited
        self._was_limited = is_limited
        self._backlog.set_limit(is_limited=is_limited, max_call=None if pace is None else pace.max_together)
        if began:
            self._backlog.release_waiting()

    # --- before a claim --------------------------------------------------------------------------

    async def take(self, n: int) -> int:
        """Return how many of ``n`` items may be claimed now; what that needs is taken before."""
        self.adopt()
        self.claiming, keyed = 0, self._keyed
        if keyed is not None and self._lined != self._pace:
            # Items look for starts that were put off by another pace, once the last of them are back.
            pace = self._pace
            while self._backlog.has_unsettled and not self._backlog.closed:
                await sleep(BUSY_PAUSE_SECONDS)
            await end_put_offs(self._context)
            self._lined = pace
        if not self.is_limited and self._permits is None:
            self._room = self._backlog.room_left(n)
            return self._room
        try:
            pace = self._pace if keyed is None else None
            if pace is not None and self._count_slots(pace, self._now() + CLAIM_LEAD_MS) <= 0:
                if self._count_slots(pace) > 0:
                    self._rest_until_slot(pace)
                    n = 0
                else:  # as far as this process knows
                    self._resume_at = max(self._resume_at, self._slots_at)
                    n = 0 if time.monotonic() < self._slots_at else n
            most = self._context.settings.max_running
            if most is None:
                await self._keep(lambda _: 0)
            elif n:  # before the slots: one that is taken without a permit is lost to the other workers
                n = await self._take_permits(most, n)
            if n and pace is not None:
                n = await self._take_slots(pace, n)
        except LimitContended:
            n = 0
            self._rest(MIN_PAUSE_SECONDS * 10)
        self.claiming, self._permitted, self._room = n, 0, n
        self._used_at = time.monotonic()
        return keyed.widen(n) if n and keyed is not None else n

    def record(self, found: int) -> None:
        """Record how many items a claim has returned, until ``accept``."""
        self.claiming = min(found, self._room)

    def accept(self) -> None:
        """Record that the backlog counts the claimed items now."""
        self.claiming = 0

    def _rest(self, seconds: float) -> None:
        self._resume_at = time.monotonic() + seconds

    def _now(self) -> float:
        return float(milliseconds(self._context.broker.clock.now()))

    # --- slots -----------------------------------------------------------------------------------

    def _count_pending(self) -> int:
        """Return the number of items held that have not used their slots yet."""
        return self._backlog.waiting + self._at_gate + self.claiming

    def _count_slots(self, pace: Pace, until: float = math.inf) -> int:
        """Return how many slots can be used, less those of items that are held."""
        with self._lock:
            return self._slots.count(self._now() - pace.tolerance, until) - self._count_pending()

    def _rest_until_slot(self, pace: Pace) -> None:
        now = self._now()
        with self._lock:
            first = self._slots.first(now - pace.tolerance)
        self._rest((first - now - CLAIM_LEAD_MS) / 1000)

    async def _take_slots(self, pace: Pace, n: int) -> int:
        """Return for how many of ``n`` items there are slots of about now; takes some if there are none."""
        wait = 0.0
        if (usable := self._count_slots(pace, self._now() + CLAIM_LEAD_MS)) <= 0:
            wait = await self._take_new_slots(pace, n)
            usable = self._count_slots(pace, self._now() + CLAIM_LEAD_MS)
        if usable > 0:
            return min(n, usable)
        if wait > 0:
            # Not for longer: a worker that stops gives slots back, which then are free again.
            self._rest(min(wait / 1000, MAX_SLOT_REST_SECONDS))
            self._slots_at = self._resume_at
        else:
            self._rest_until_slot(pace)
        return 0

    async def _take_new_slots(self, pace: Pace, n: int) -> float:
        """Take slots; returns 0, or the milliseconds until there are some."""
        with self._lock:
            late = self._slots.remove_until(self._now() - pace.tolerance)
        taken = await take_slots(self._context.broker, bucket_id(self._context.name), pace, n, late)
        if not isinstance(taken, list):
            return taken
        with self._lock:
            if pace == self._pace:
                self._slots.add(taken)
        return 0.0

    async def _give_back_slots(self) -> None:
        with self._lock:
            pace, slots = self._pace, list[Slot]()
            if pace is not None and self._count_pending() == 0:
                slots = self._slots.remove_until(math.inf)
        if pace is None or not slots:
            return
        try:
            slots = await give_back_slots(self._context.broker, bucket_id(self._context.name), pace, slots)
        finally:
            with self._lock:
                if pace == self._pace:
                    self._slots.add(slots)

    # --- permits ---------------------------------------------------------------------------------

    async def _begin_change(self) -> None:
        """Wait until nothing else changes the permits: each change begins with what the last one has left."""
        while not self._changing.acquire(blocking=False):  # it may not block: other tasks share the thread
            await sleep(BUSY_PAUSE_SECONDS)

    async def _take_permits(self, most: int, n: int) -> int:
        """Return for how many of ``n`` further items there are permits; asks for them unless it knows that already."""
        await self._begin_change()
        try:
            occupied, permits = self._backlog.occupied, self._permits
            self._permitted = 0
            lease, is_enough = self._consumer.lease_length, False
            if permits is not None and most == self._asked_limit:
                known_for = KNOWN_SECONDS if permits.number else REFUSED_PAUSE_SECONDS
                left = permits.until - self._context.broker.clock.now()
                is_enough = permits.number <= occupied or left >= lease * PERMIT_LEASES_LEFT
                is_enough = is_enough and time.monotonic() - self._asked_at < known_for
            if not is_enough:
                if self.is_lost and occupied == 0:
                    self.forget_loss()  # the runs have ended before their leases were to be extended
                    permits = None
                if self.is_lost:
                    self._rest(REFUSED_PAUSE_SECONDS)
                    return 0
                options: dict[str, Any] = {"limit": most, "occupied": occupied, "wanted": occupied + n}
                options |= {"lease": lease * PERMIT_LEASES, "known": self._document}
                options["holds"] = permits is not None and permits.number > 0
                broker, name = self._context.broker, self._context.name
                permits, self._document = await take_permits(broker, name, self._by, **options)
                self._permits, self._asked_at, self._asked_limit = permits, time.monotonic(), most
                self.is_lost = permits.lost and occupied > 0
            assert permits is not None
            if permits.number <= occupied or self.is_lost:
                self._rest(MAX_PAUSE_SECONDS if permits.number else REFUSED_PAUSE_SECONDS)
                return 0
            # Before the next call that changes the permits: it gives back what seems to be unused.
            self._permitted = min(n, permits.number - occupied)
            return self._permitted
        finally:
            self._changing.release()

    def covers(self, items: Sequence[Item[Any]]) -> bool:
        """Return whether the permits last as long as the leases of claimed items: a claim may take very long."""
        permits = self._permits
        if permits is None or self._context.settings.max_running is None:
            return True
        return all(item.lease_until is None or item.lease_until <= permits.until for item in items)

    async def give_back(self) -> None:
        """Give back slots and permits that no item needs (``find`` and ``update`` of each)."""
        try:
            await self._give_back_slots()
            if self._permits is not None:
                await self._keep(lambda held: needed if held > (needed := self._count_needed()) else None)
        except LimitContended:
            pass  # they are tried again, or lapse

    def _count_needed(self) -> int:
        """Return how many permits are used, or are about to be: by slots of about now."""
        with self._lock:
            now = self._now()
            near = max(self._slots.count(now - NEAR_SLOT_MS, now + NEAR_SLOT_MS) - self._count_pending(), 0)
        return self._backlog.occupied + max(self.claiming, self._permitted) + near

    async def _keep(self, find_number: Callable[[int], int | None]) -> None:
        """Keep some of the permits held, and extend their lease; ``find_number`` returns how many, or to do nothing."""
        await self._begin_change()
        try:
            held = self._permits
            if held is None or self.is_lost or (number := find_number(held.number)) is None:
                return
            lease = self._consumer.lease_length * PERMIT_LEASES
            options: dict[str, Any] = {"number": number, "lease": lease, "known": self._document}
            permits, self._document = await keep_permits(self._context.broker, self._context.name, self._by, **options)
            self.is_lost = permits.lost
            self._permits = permits if number or permits.lost else None
            self._asked_at = float("-inf")
        finally:
            self._changing.release()

    async def give_back_unused(self) -> None:
        """Give back permits that no claim has used for a moment."""
        permits, is_used = self._permits, time.monotonic() - self._used_at < KNOWN_SECONDS / 2
        if permits is not None and not is_used and not self.is_lost and permits.number > self._count_needed():
            await self.give_back()

    async def extend(self) -> None:
        """Extend the lease of the permits, before the leases of the items are; sets ``is_lost`` when it has ended."""
        try:
            await self._keep(lambda held: held or None)
        except LimitContended:
            pass  # the items are extended only as far as their permits last: at the next time

    def lasts(self, until: datetime) -> bool:
        """Return whether items may be held until then."""
        permits = self._permits
        return permits is None or permits.number == 0 or (not self.is_lost and permits.until >= until)

    def forget_loss(self) -> None:
        """Begin anew after the items that were held under lost permits have been given up."""
        self.is_lost, self._permits, self._document = False, None, None
        self._asked_at = float("-inf")

    async def leave(self, number: int = 0) -> None:
        """Give back everything at the end, but for the permits of ``number`` runs that were left behind."""
        self.claiming = 0
        await self._give_back_slots()
        await self._keep(lambda held: number if number == 0 or held > number else None)

    # --- starts ----------------------------------------------------------------------------------

    async def admit(
        self, items: Sequence[Item[Any]], refuse: Refuse
    ) -> tuple[list[Item[Any]], list[tuple[Item[Any], Any]]]:
        """Take a slot of its key for each claimed item; returns the items to run, and the others with outcomes."""
        if self._pace is None or self._keyed is None:  # the rate has ended since the claim
            return list(items[: self._room]), [(item, Release()) for item in items[self._room :]]
        kept, others = await self._keyed.admit(items, self._pace, self._room, refuse)
        self._keyed.record(items, len(kept))
        return kept, others

    @contextmanager
    def at_gate(self, run: HandlerCall) -> Iterator[None]:
        """Count a call that waits for its slots."""
        number = len(run.items)
        with self._lock:
            self._at_gate += number
        try:
            yield
        finally:
            with self._lock:
                self._at_gate -= number

    def start(self, run: HandlerCall) -> float:
        """Use the slots of a call; returns 0, or the seconds to wait, infinite if there is no slot for it."""
        with self._lock:
            pace, now = self._pace, self._now()
            if pace is None:
                return 0.0
            if self._keyed is None:
                return self._slots.use(now - pace.tolerance, now, len(run.items)) / 1000
            return self._keyed.use(run.items[0], pace, now) / 1000

    async def take_for(self, run: HandlerCall, refuse: Refuse) -> ResolvedOutcome | float:
        """Take slots for a call that has none; returns the seconds to wait, or the outcome of an item to put off."""
        try:
            pace = self._pace
            if pace is None:
                return 0.0
            if self._keyed is None:
                return await self._take_new_slots(pace, len(run.items)) / 1000
            if self._keyed.is_late(run.items[0]):
                return Release(self._context.broker.clock.now())
            _, others = await self._keyed.admit(run.items, pace, len(run.items), refuse)
            return others[0][1] if others else 0.0
        except LimitContended:
            return REFUSED_PAUSE_SECONDS


class KeyedRates:
    """Holds slots of claimed items, from the buckets of their keys. Callers of ``clear`` and ``use`` hold ``lock``."""

    def __init__(self, consumer: Consumer, lock: Lock) -> None:
        self._consumer = consumer
        self._broker = consumer.context.broker
        self._lock = lock
        # Of the items of one claim with one key: an item that is late starts before those behind it all the same.
        self._slots: dict[Any, Slots] = {}
        self._width = 0

    def clear(self) -> None:
        """Forget all slots: the rate has changed."""
        self._slots.clear()

    def widen(self, n: int) -> int:
        """Return how many items to claim where ``n`` may start: more while all that come are put off."""
        return max(min(n, MAX_KEYED_CLAIM), self._width)

    def record(self, items: Sequence[Item[Any]], kept: int) -> None:
        """Record how many items of a claim may start."""
        largest = max((item._size for item in items), default=0)
        fitting = (self._consumer.prefetch_bytes or math.inf) // max(largest, 1)
        self._width = 0 if kept else int(min(2 * len(items), MAX_KEYED_CLAIM, fitting))

    async def admit(
        self, items: Sequence[Item[Any]], pace: Pace, room: int, refuse: Refuse
    ) -> tuple[list[Item[Any]], list[tuple[Item[Any], Any]]]:
        """Take slots of their keys for claimed items, ``room`` at most; returns the items to run, and the others.

        One ``find`` reads all buckets; one ``update`` follows for each key that gives slots, or places in its line. The
        others come with their outcomes: most are put off. ``refuse`` returns the outcome of an item without a usable
        key.
        """
        kept: list[Item[Any]] = []
        others: list[tuple[Item[Any], Any]] = []
        keyed: dict[str, list[Item[Any]]] = {}
        assert self._consumer.rate_key is not None
        for item in items:
            try:
                key = self._consumer.rate_key.read(item)
            except Exception as error:
                others.append((item, refuse(item, error)))
            else:
                keyed.setdefault(bucket_id(self._consumer.name, key), []).append(item)
        known = await read_buckets(self._broker, list(keyed))
        for id, alike in keyed.items():
            with self._lock:
                over = milliseconds(self._broker.clock.now()) - pace.tolerance
                held = {id_key(item.id): self._slots.pop(id_key(item.id), None) for item in alike}
                unused = [slot for slots in held.values() if slots is not None for slot in slots.remove_until(over)]
            has_turn = {key: slots is not None for key, slots in held.items()}
            for item in alike:  # one may have come back at its turn in the line of its key
                throttled = item.stored("throttled")
                if isinstance(throttled, Mapping) and throttled.get("in_line") is True:
                    has_turn[id_key(item.id)] |= throttled.get("until") == item.due
            alike.sort(key=lambda item: not has_turn[id_key(item.id)])
            turns = [has_turn[id_key(item.id)] for item in alike]
            options: dict[str, Any] = {"room": room - len(kept), "known": known.get(id), "unused": unused}
            taken, put_offs = await share_key_slots(self._broker, id, pace, turns, **options)
            starting, slots = alike[: len(taken)], Slots()
            slots.add(taken)
            kept += starting
            for item, put_off in zip(alike[len(taken) :], put_offs, strict=True):
                back = Release() if put_off is None else Release(time_of(math.ceil(put_off[0])), in_line=put_off[1])
                others.append((item, back))
            with self._lock:
                if len(self._slots) >= MAX_KEYED:  # of items that went back unused
                    self._slots.clear()
                self._slots |= dict.fromkeys([id_key(item.id) for item in starting], slots)
        return kept, others

    def use(self, item: Item[Any], pace: Pace, now: float) -> float:
        """Use the slot of an item; returns 0, or the milliseconds to wait, infinite if there is no slot for it."""
        slots = self._slots.get(id_key(item.id))
        wait = math.inf if slots is None or self.is_late(item) else slots.use(now - pace.tolerance, now, 1)
        if wait == 0:
            del self._slots[id_key(item.id)]
        return wait

    def is_late(self, item: Item[Any]) -> bool:
        """Return whether an item has expired while it waited for its slot; one that has left its queue runs."""
        return not self._consumer.pops and is_expired(item, self._broker.clock.now())
