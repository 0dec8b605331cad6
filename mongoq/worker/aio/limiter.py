"""Limiter of a consumer: holds permits and slots for what it claims and starts, while its queue has limits.

It takes them from the control documents that all processes share; what it holds, it decides about without I/O.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from mongoq.model.clock import VirtualClock, milliseconds
from mongoq.model.item import Item
from mongoq.model.outcomes import Release, ResolvedOutcome
from mongoq.model.rate import Block, Pace, Slots
from mongoq.protocol.coordination.limits import (
    LimitContended,
    PermitRequest,
    Permits,
    bucket_id,
    end_put_offs,
    give_back_slots,
    keep_permits,
    plan_again,
    read_document,
    take_permits,
    take_slots,
)
from mongoq.protocol.perform import sleep
from mongoq.protocol.state.context import QueueContext
from mongoq.worker.aio.keyed_rates import KeyedRates, Refuse
from mongoq.worker.backlog import Backlog
from mongoq.worker.consumer import Consumer
from mongoq.worker.handler_call import HandlerCall

T = TypeVar("T")

CLAIM_LEAD_MS = 50.0
"""Milliseconds before its slot at which an item is claimed."""
NEAR_SLOT_MS = 1_000.0
"""Milliseconds before and after its slot for which a permit is kept for an item, rather than left to other workers."""
PERMIT_LEASES = 1.5
"""Lease of permits in leases of items: they end after the items that are held under them."""
PERMIT_LEASES_LEFT = 1.25
"""The same at which it is extended before a claim."""
KNOWN_SECONDS = 0.2
"""Seconds for which permits are used without looking whether other workers ask for some."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.25
"""Seconds between two tries of a limited consumer, at least and at most."""
MAX_SLOT_REST_SECONDS = 5.0
"""Seconds after which a worker looks again for slots, at most, however slow the rate is."""
REFUSED_PAUSE_SECONDS = 0.05
"""Seconds after which a worker without any permit asks again."""
BUSY_PAUSE_SECONDS = 0.002
"""Seconds between two looks whether another thread or task still changes the permits."""


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
        self._consumer = consumer
        self._context = consumer.context
        self._backlog = backlog
        self._by = worker
        self._lock = Lock()
        self._changing = Lock()
        self._taking = self._permitted = 0
        self._slots = Slots()
        self._pace: Pace | None = None
        self._lined: Pace | None = None
        self._room = 0
        self._keyed = KeyedRates(consumer, self._lock)
        self._at_gate = 0
        self._permits: Permits | None = None
        self._document: Mapping[str, Any] | None = None
        self._asked_at = self._seen_at = self._used_at = float("-inf")
        self._asked_limit: int | None = None
        self._asked_wanted = 0
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
        return self._consumer.claims is None and self._context.settings.rate is not None

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
        pace = find_pace(self._context) if self.has_rate else None
        if pace != self._pace:
            with self._lock:
                self._pace = pace
                self._slots.clear()
                self._keyed.clear()
                self._resume_at = self._slots_at = float("-inf")
        is_limited, began = self.is_limited, self.is_limited and not self._was_limited
        self._was_limited = is_limited
        self._backlog.set_limit(is_limited, None if pace is None else pace.max_together)
        if began:
            self._backlog.release_waiting()

    # --- before a claim --------------------------------------------------------------------------

    async def take(self, n: int) -> int:
        """Return how many of ``n`` items may be claimed now; what that needs is taken before."""
        self.adopt()
        self.claiming = 0
        is_keyed = self._consumer.rate_key is not None
        if is_keyed and self._lined != self._pace:
            await self._end_put_offs()
        if not self.is_limited and self._permits is None:
            self._room = self._backlog.room_left(n)
            return self._room
        try:
            has_slots = self._pace is not None and not is_keyed
            if has_slots and self._waits_for_slot():
                n = 0
            most = self._context.settings.max_running
            if most is None:
                await self._alone(self._leave)
            elif n:  # before the slots: one that is taken without a permit is lost to the other workers
                n = await self._alone(partial(self._take_permits, most, n))
            if n and has_slots:
                n = await self._take_slots(n)
        except LimitContended:
            n = 0
            self._rest(MIN_PAUSE_SECONDS * 10)
        self.claiming, self._permitted, self._room = n, 0, n
        self._used_at = time.monotonic()
        return self._keyed.widen(n) if n and is_keyed else n

    def record(self, found: int) -> None:
        """Record how many items a claim has returned, until ``accept``."""
        self.claiming = min(found, self._room)

    def accept(self) -> None:
        """Record that the backlog counts the claimed items now."""
        self.claiming = 0

    async def _end_put_offs(self) -> None:
        """Let the items look for starts that were put off by another pace, once the last of them are back."""
        pace = self._pace
        while self._backlog.has_unsettled and not self._backlog.closed:
            await sleep(BUSY_PAUSE_SECONDS)
        await end_put_offs(self._context)
        self._lined = pace

    def _rest(self, seconds: float) -> None:
        self._resume_at = time.monotonic() + seconds

    def _now(self) -> float:
        return float(milliseconds(self._context.broker.clock.now()))

    def _count_pending(self) -> int:
        """Return the number of items held that have not used their slots yet."""
        return self._backlog.waiting + self._at_gate + self.claiming

    def _waits_for_slot(self) -> bool:
        """Return whether a claim waits for a slot, as far as this process knows; it rests until then."""
        usable, left = self._count_slots()
        if usable > 0:
            return False
        if left > 0:
            self._rest_until_slot()
            return True
        self._resume_at = max(self._resume_at, self._slots_at)
        return time.monotonic() < self._slots_at

    async def _take_slots(self, n: int) -> int:
        usable, _ = self._count_slots()
        wait = 0.0
        if usable <= 0:
            wait = await self._take_block(n)
            usable, _ = self._count_slots()
        if usable > 0:
            return min(n, usable)
        if wait > 0:
            # Not for longer: a worker that stops gives slots back, which then are free again.
            self._rest(min(wait / 1000, MAX_SLOT_REST_SECONDS))
            self._slots_at = self._resume_at
        else:
            self._rest_until_slot()
        return 0

    def _rest_until_slot(self) -> None:
        self._rest((self._slots.first() - self._now() - CLAIM_LEAD_MS) / 1000)

    def _count_slots(self) -> tuple[int, int]:
        """Return how many slots can be used soon, and later as well, less those of items that are held."""
        with self._lock:
            pending = self._count_pending()
            return self._slots.count(self._now() + CLAIM_LEAD_MS) - pending, self._slots.count(math.inf) - pending

    async def _take_block(self, n: int) -> float:
        """Take slots; returns 0, or the milliseconds until there are some."""
        pace, slots = self._pace, self._slots
        if pace is None:
            return 0.0
        with self._lock:
            own = slots.detach()
            self._taking += 1
        taken: tuple[Block, bool] | float = 0.0
        try:
            taken = await take_slots(self._context.broker, bucket_id(self._context.name), pace, n, own)
        finally:
            with self._lock:
                self._taking -= 1
                if pace == self._pace:
                    block, is_merged = taken if isinstance(taken, tuple) else (None, False)
                    if own is not None and not is_merged:
                        slots.restore(own)
                    if block is not None:
                        slots.add(block)
        return 0.0 if isinstance(taken, tuple) else taken

    async def _alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run what changes the permits when no other one does: each begins with what the last one has left."""
        while not self._changing.acquire(blocking=False):  # it may not block: other tasks share the thread
            await sleep(BUSY_PAUSE_SECONDS)
        try:
            return await work()
        finally:
            self._changing.release()

    async def _take_permits(self, most: int, n: int) -> int:
        """Return for how many of ``n`` further items there are permits; asks for them unless it knows that already."""
        occupied, permits = self._backlog.occupied, self._permits
        self._permitted = 0
        lease = self._consumer.lease_length
        if permits is not None and self._is_known(permits, most, occupied, occupied + n):
            left = permits.until - self._context.broker.clock.now()
            is_enough = permits.number <= occupied or left >= lease * PERMIT_LEASES_LEFT
        else:
            is_enough = False
        if not is_enough:
            if self.is_lost and occupied == 0:
                self.forget_loss()  # the runs have ended before their leases were to be extended
                permits = None
            if self.is_lost:
                self._rest(REFUSED_PAUSE_SECONDS)
                return 0
            request = PermitRequest(
                by=self._by,
                limit=most,
                occupied=occupied,
                wanted=occupied + n,
                lease=lease * PERMIT_LEASES,
                holds=permits is not None and permits.number > 0,
            )
            taking = take_permits(self._context.broker, self._context.name, request, self._document)
            permits, self._document = await taking
            self._permits, self._asked_at = permits, time.monotonic()
            self._asked_limit, self._asked_wanted = most, request.wanted
            self.is_lost = permits.lost and occupied > 0
        assert permits is not None
        if permits.number <= occupied or self.is_lost:
            self._rest(MAX_PAUSE_SECONDS if permits.number else REFUSED_PAUSE_SECONDS)
            return 0
        # Before the next call that changes the permits: it gives back what seems to be unused.
        self._permitted = min(n, permits.number - occupied)
        return self._permitted

    def _is_known(self, permits: Permits, most: int, occupied: int, wanted: int) -> bool:
        """Return whether a claim goes by the permits held, without asking for them again."""
        if most != self._asked_limit:
            return False
        known_for = KNOWN_SECONDS if permits.number else REFUSED_PAUSE_SECONDS
        now = time.monotonic()
        # A look finds out what others want. That this worker wants more than before, they learn when it asks.
        is_seen = now - self._seen_at < known_for and (permits.number > occupied or wanted <= self._asked_wanted)
        return is_seen or now - self._asked_at < known_for

    # --- after it --------------------------------------------------------------------------------

    def covers(self, items: Sequence[Item[Any]]) -> bool:
        """Return whether the permits last as long as the leases of claimed items: a claim may take very long."""
        permits = self._permits
        if permits is None or self._context.settings.max_running is None:
            return True
        return all(item.lease_until is None or item.lease_until <= permits.until for item in items)

    async def give_back(self) -> None:
        """Give back slots and permits that no item needs (``find`` and ``update`` of each)."""
        if self._permits is None and not self._slots.has_unused:
            return
        try:
            await self._give_back_slots()
            await self._alone(self._give_back_permits)
        except LimitContended:
            pass  # they are tried again, or lapse

    async def _give_back_slots(self) -> None:
        with self._lock:
            own = self._slots.detach() if self._slots.has_unused and self._count_pending() == 0 else None
        if own is None:
            return
        is_back = False
        try:
            is_back = await give_back_slots(self._context.broker, bucket_id(self._context.name), own)
        finally:
            with self._lock:
                if own.pace == self._pace:
                    # An empty block remains: its end tells whether the bucket is as this process has left it.
                    self._slots.restore(Block(own.next, own.next, own.pace) if is_back else own)

    async def _give_back_permits(self) -> None:
        permits, needed = self._permits, self._count_needed()
        if permits is not None and not self.is_lost and permits.number > needed:
            await self._keep(needed)

    def _count_needed(self) -> int:
        """Return how many permits are used, or are about to be: by slots of about now."""
        with self._lock:
            now = self._now()
            near = self._slots.count(now + NEAR_SLOT_MS) - self._slots.count(now - NEAR_SLOT_MS)
            near = max(near - self._count_pending(), 0)
        return self._backlog.occupied + max(self.claiming, self._permitted) + near

    async def _keep(self, number: int) -> None:
        lease = self._consumer.lease_length * PERMIT_LEASES
        options: dict[str, Any] = {"number": number, "lease": lease, "known": self._document}
        permits, self._document = await keep_permits(self._context.broker, self._context.name, self._by, **options)
        self.is_lost = self.is_lost or permits.lost
        self._permits, self._asked_wanted = (permits if number or permits.lost else None), number
        self._asked_at = self._seen_at = float("-inf")

    async def check(self) -> None:
        """Give back permits that no claim has used for a moment; else look, beside the claims, whether others want any.

        So a claim seldom asks, which takes as long as the claim itself while several workers change the document.
        """
        permits, now, limit = self._permits, time.monotonic(), self._asked_limit
        if permits is None or self.is_lost or permits.number == 0:
            return
        if now - self._used_at >= KNOWN_SECONDS / 2 and permits.number > self._count_needed():
            await self.give_back()
        elif now - self._asked_at >= KNOWN_SECONDS / 2:
            document = await read_document(self._context.broker, self._context.name)
            planned = None if limit is None else plan_again(document, self._by, limit, self._context.broker.clock.now())
            if self._permits is not permits or limit != self._asked_limit:
                return  # a claim has asked meanwhile
            if planned == permits.number:
                self._document, self._seen_at = document, now
            else:  # the next claim asks: the worker may have more or fewer now
                self._asked_at = self._seen_at = float("-inf")

    async def extend(self) -> None:
        """Extend the lease of the permits, before the leases of the items are; sets ``is_lost`` when it has ended."""

        async def extend() -> None:
            permits = self._permits
            if permits is not None and permits.number and not self.is_lost:
                await self._keep(permits.number)

        try:
            await self._alone(extend)
        except LimitContended:
            pass  # the items are extended only as far as their permits last: at the next time

    def lasts(self, until: datetime) -> bool:
        """Return whether items may be held until then."""
        permits = self._permits
        return permits is None or permits.number == 0 or (not self.is_lost and permits.until >= until)

    def forget_loss(self) -> None:
        """Begin anew after the items that were held under lost permits have been given up."""
        self.is_lost, self._permits, self._document = False, None, None
        self._asked_at = self._seen_at = float("-inf")

    async def leave(self, number: int = 0) -> None:
        """Give back everything at the end, but for the permits of ``number`` runs that were left behind."""
        self.claiming = 0
        await self._give_back_slots()
        await self._alone(partial(self._leave, number))

    async def _leave(self, number: int = 0) -> None:
        permits = self._permits
        if permits is not None and not self.is_lost and (number == 0 or permits.number > number):
            await self._keep(number)

    # --- rates by key ----------------------------------------------------------------------------

    async def admit(
        self, items: Sequence[Item[Any]], refuse: Refuse
    ) -> tuple[list[Item[Any]], list[tuple[Item[Any], Any]]]:
        """Take a slot of its key for each claimed item; returns the items to run, and the others with outcomes."""
        if self._pace is None:  # the rate has ended since the claim
            return list(items[: self._room]), [(item, Release()) for item in items[self._room :]]
        kept, others = await self._keyed.admit(items, self._pace, self._room, refuse)
        self._keyed.record(items, len(kept))
        return kept, others

    # --- starts ----------------------------------------------------------------------------------

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
            if self._pace is None:
                return 0.0
            if self._consumer.rate_key is None:
                wait = self._slots.use(self._now(), len(run.items)) / 1000
                # While a block is being moved, its slots are not to be seen.
                return MIN_PAUSE_SECONDS if self._taking and wait == math.inf else wait
            return self._keyed.use(run.items[0]) / 1000

    async def take_for(self, run: HandlerCall, refuse: Refuse) -> ResolvedOutcome | float:
        """Take slots for a call that has none; returns the seconds to wait, or the outcome of an item to put off."""
        try:
            pace = self._pace
            if self._consumer.rate_key is None or pace is None:
                wait = await self._take_block(len(run.items))
                return wait / 1000
            if self._keyed.is_late(run.items[0]):
                return Release(self._context.broker.clock.now())
            _, others = await self._keyed.admit(run.items, pace, len(run.items), refuse)
            return others[0][1] if others else 0.0
        except LimitContended:
            return REFUSED_PAUSE_SECONDS
