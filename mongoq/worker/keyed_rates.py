"""Keyed rates of a consumer: each key of ``rate_key`` has a bucket of its own, which is known only after a claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from mongoq.model.clock import time_of
from mongoq.model.item import Item, id_key
from mongoq.model.outcomes import Release
from mongoq.model.rate import Pace, Slots
from mongoq.protocol.coordination.limits import bucket_id, plan_later
from mongoq.protocol.flow import Flow
from mongoq.worker.consumer import Consumer

MAX_KEYED_CLAIM = 10
"""Items in one claim, at most, whose rates are known only after it."""
MAX_KEYED = 10_000
"""Items whose slots are remembered, at most."""


@dataclass(slots=True)
class _Keyed:
    """Slot of an item with a rate of its own key."""

    bucket: str
    slots: Slots


class KeyedRates:
    """Holds the slots of claimed items, each from the bucket of its key.

    ``take_block`` takes slots of a bucket: it returns 0, or the milliseconds until there are some. Callers of ``clear``
    and ``use`` hold ``lock``.
    """

    def __init__(self, consumer: Consumer, lock: Lock, take_block: Callable[[str, Slots, int], Flow[float]]) -> None:
        self._consumer = consumer
        self._lock = lock
        self._take_block = take_block
        self._slots: dict[Any, _Keyed] = {}

    def clear(self) -> None:
        """Forget all slots: the rate has changed."""
        self._slots.clear()

    def admit_all(
        self, items: Sequence[Item[Any]], pace: Pace, refuse: Callable[[Item[Any], Exception], Any]
    ) -> Flow[tuple[list[Item[Any]], list[tuple[Item[Any], Any]]]]:
        """Take a slot of its key for each claimed item; returns the items to run, and the others with outcomes.

        An item whose bucket is empty is put off until its time. ``refuse`` returns the outcome of an item without a
        usable key.
        """
        kept: list[Item[Any]] = []
        others: list[tuple[Item[Any], Any]] = []
        for item in items:
            try:
                key = self._read_key(item)
            except Exception as error:
                others.append((item, refuse(item, error)))
                continue
            later = yield from self._admit(item, key, pace)
            if later is None:
                kept.append(item)
            else:
                others.append((item, later))
        return kept, others

    def admit(self, item: Item[Any], pace: Pace) -> Flow[Release | None]:
        """Take a slot of its key for an item that has none any more; returns its outcome if it is to be put off."""
        return (yield from self._admit(item, self._read_key(item), pace))

    def use(self, item: Item[Any], now: float) -> float:
        """Use the slot of an item; returns 0, or the milliseconds to wait, infinite if there is no slot for it."""
        keyed = self._slots.get(id_key(item.id))
        wait = math.inf if keyed is None else keyed.slots.use(now)
        if wait == 0:
            del self._slots[id_key(item.id)]
        return wait

    def _read_key(self, item: Item[Any]) -> bytes:
        assert self._consumer.rate_key is not None
        return self._consumer.rate_key.read(item)

    def _admit(self, item: Item[Any], key: bytes, pace: Pace) -> Flow[Release | None]:
        keyed = _Keyed(bucket_id(self._consumer.name, key), Slots())
        wait = yield from self._take_block(keyed.bucket, keyed.slots, 1)
        if wait > 0:
            planned = yield from plan_later(self._consumer.context.broker, keyed.bucket, pace, wait)
            return Release(time_of(math.ceil(planned)))
        with self._lock:
            if len(self._slots) >= MAX_KEYED:  # of items that went back unused
                self._slots.clear()
            self._slots[id_key(item.id)] = keyed
        return None
