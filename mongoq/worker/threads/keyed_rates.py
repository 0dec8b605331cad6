# Generated from mongoq/worker/aio/keyed_rates.py by scripts/unasync.py. Do not edit.
"""Keyed rates of a consumer: each key of ``rate_key`` has a bucket of its own, which is known only after a claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from mongoq.model.clock import milliseconds, time_of
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Release
from mongoq.model.rate import Pace, PutOff, Slots
from mongoq.protocol.claim.judge import is_expired
from mongoq.protocol.coordination.limits import bucket_id
from mongoq.protocol_threads.coordination.limits import read_buckets, share_key_slots
from mongoq.worker.consumer import Consumer

MAX_KEYED_CLAIM = 100
"""Items in one claim, at most, whose rates are known only after it."""
MAX_KEYED = 10_000
"""Items whose slots are remembered, at most."""

Refuse = Callable[[Item[Any], Exception], Any]


class KeyedRates:
    """Holds slots of claimed items, from the buckets of their keys. Callers of ``clear`` and ``use`` hold ``lock``."""

    def __init__(self, consumer: Consumer, lock: Lock) -> None:
        self._consumer = consumer
        self._broker = consumer.context.broker
        self._lock = lock
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

    def admit(
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
        known = read_buckets(self._broker, list(keyed))
        for id, alike in keyed.items():
            with self._lock:
                late = {id_key(item.id): self._slots.pop(id_key(item.id), None) for item in alike}
                own = next((slots.detach() for slots in late.values() if slots is not None), None)
            has_turn = {key: slots is not None for key, slots in late.items()}
            for item in alike:  # one may have come back at its turn in the line of its key
                throttled = item.stored("throttled")
                if isinstance(throttled, Mapping) and throttled.get("in_line") is True:
                    has_turn[id_key(item.id)] |= throttled.get("until") == item.due
            alike.sort(key=lambda item: not has_turn[id_key(item.id)])
            turns = [has_turn[id_key(item.id)] for item in alike]
            options: dict[str, Any] = {"room": room - len(kept), "own": own, "known": known.get(id)}
            block, put_offs = share_key_slots(self._broker, id, pace, turns, **options)
            starting = alike[: len(alike) - len(put_offs)]
            kept += starting
            others += zip(alike[len(starting) :], map(_release, put_offs), strict=True)
            if block is not None:
                slots = Slots()
                slots.add(block)
                with self._lock:
                    if len(self._slots) >= MAX_KEYED:  # of items that went back unused
                        self._slots.clear()
                    self._slots |= dict.fromkeys([id_key(item.id) for item in starting], slots)
        return kept, others

    def use(self, item: Item[Any]) -> float:
        """Use the slot of an item; returns 0, or the milliseconds to wait, infinite if there is no slot for it."""
        slots, now = self._slots.get(id_key(item.id)), self._broker.clock.now()
        wait = math.inf if slots is None or self.is_late(item) else slots.use(float(milliseconds(now)))
        if wait == 0:
            del self._slots[id_key(item.id)]
        return wait

    def is_late(self, item: Item[Any]) -> bool:
        """Return whether an item has expired while it waited for its slot; one that has left its queue runs."""
        return not self._consumer.pops and is_expired(item, self._broker.clock.now())


def _release(put_off: PutOff | None) -> Release:
    return Release() if put_off is None else Release(time_of(math.ceil(put_off.until)), put_off.in_line)
