"""Shelves: what was read of the head of a queue and not claimed yet, so that not every claim reads for itself.

What is here is nobody's: a claim finds out what of it is still there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from mongoq.model.process.clock import milliseconds
from mongoq.model.raw.raw_envelope import RawEnvelope
from mongoq.protocol.flow.commands import Begun, Command
from mongoq.protocol.state.claim_hints import ScanStart

__all__ = ["FRESH", "PendingRead", "PrefetchBuffer"]

Place = tuple[float, float]
"""A priority, and a time in milliseconds since 1970."""

FRESH = 0.1
"""Seconds for which what was read is good enough: what comes to stand before it waits so much longer."""
BATCHES = 4
"""Batches that are read at once, with the one that is claimed at once."""
FEW = 16
"""Items of a batch below which nothing is read ahead."""
BYTES = 128 * 1024
"""About how much is read at once, if a batch alone is not more."""
PAUSE = 1.0
"""Seconds for which claims go by ids again, once what was read whole was no use."""


@dataclass(slots=True)
class PendingRead:
    """A read under way.

    Attributes:
        command: what is sent.
        start: where it begins.
        begun: its reply, where nobody waits for it yet.
        claimed: the keys of ids (``id_key``) that it may find although they are claimed by the time it is there.
        placed: the first place that this process has put an item into meanwhile, which it may have missed.
    """

    command: Command[list[bytes]]
    start: ScanStart
    begun: Begun | None = None
    claimed: set[Any] = field(default_factory=set)
    placed: Place | None = None

    def is_fresh(self, at: float) -> bool:
        """Say whether what it finds is good enough."""
        return at - self.start.at <= FRESH

    def unclaimed(self, read: Sequence[RawEnvelope]) -> Sequence[RawEnvelope]:
        """Return what of its items is still to be claimed, in this order."""
        return [item for item in read if item.id not in self.claimed]

    def before(self, read: Sequence[RawEnvelope]) -> Sequence[RawEnvelope]:
        """Return what of its items stands before all that this process has put there meanwhile."""
        return read if self.placed is None else _until(self.placed, read)


@dataclass(slots=True)
class PrefetchBuffer:
    """What was read ahead of one queue.

    Attributes:
        items: fresh ones, in the order of claims. Replaced as a whole, so that threads see one state of them.
        read_at: when they were asked for, on the monotonic clock.
        size: the bytes of one of them; so large are others thought to be.
        coming: what is being read to take their place.
        flying: the keys of ids that claims under way mean to take.
        singles: claims of single items that are under way, which may take any of them.
        single: the last one that has ended.
        pid: the process that all this is true of.
        closed_until: until when nothing is read ahead.
        asked_at: when the last claim began.
        busy: claims follow one another so closely that the next will find what is read ahead still fresh.
    """

    items: Sequence[RawEnvelope] = ()
    read_at: float = float("-inf")
    size: int = BYTES
    coming: PendingRead | None = None
    flying: set[Any] = field(default_factory=set)
    singles: set[object] = field(default_factory=set)
    single: object = None
    pid: int = field(default_factory=os.getpid)
    closed_until: float = float("-inf")
    asked_at: float = float("-inf")
    busy: bool = False

    def most(self, n: int) -> int:
        """Return how many to read where ``n`` are to be claimed."""
        return max(n, min(n * BATCHES, BYTES // max(self.size, 1))) if self.busy and n >= FEW else n

    def asked(self, at: float) -> None:
        """Take in that a claim begins."""
        self.busy, self.asked_at = at - self.asked_at < FRESH / 2, at

    def take(self, n: int, at: float) -> Sequence[RawEnvelope]:
        """Take the first ``n``, to claim them; none where there are fewer, or where they were read too long ago."""
        items = self.items
        if len(items) < n or at - self.read_at > FRESH:
            return ()
        self.items = items[n:]
        return items[:n]

    def put(self, items: Sequence[RawEnvelope], at: float, size: int) -> None:
        """Take in what was read; what was here before is among it, as far as it is there still."""
        self.items, self.read_at, self.size = items, at, size

    def claims(self, keys: Collection[Any]) -> None:
        """Take in what is about to be claimed from here, which a read may find all the same until it has ``landed``."""
        self.flying.update(keys)
        if self.coming is not None:
            self.coming.claimed.update(keys)

    def landed(self, keys: Collection[Any]) -> None:
        """Take in that such a claim is over."""
        self.flying.difference_update(keys)

    def here(self) -> None:
        """Start afresh in a forked child: what was under way is the parent's."""
        if self.pid != os.getpid():
            self.pid, self.flying, self.singles = os.getpid(), set(), set()
            self.items, self.coming = (), None

    @contextmanager
    def claims_one(self) -> Iterator[None]:
        """Take in that a single item is claimed, and nobody knows which; several threads may do so."""
        single = object()
        self.singles.add(single)
        try:
            yield
        finally:
            self.single = single
            self.singles.discard(single)

    def took(self, keys: Collection[Any]) -> None:
        """Take in what another claim of this process has taken."""
        self.items = [item for item in self.items if item.id not in keys]
        if self.coming is not None:
            self.coming.claimed.update(keys)

    @property
    def is_filled(self) -> bool:
        """Whether there is anything, or will be."""
        return bool(self.items) or self.coming is not None

    def placed(self, priority: int | None, when: datetime | None) -> None:
        """Take in that this process put something into the queue: what may come behind it is to be read again."""
        place = -math.inf if priority is None else priority, -math.inf if when is None else milliseconds(when)
        if self.items and place < _place(self.items[-1]):
            self.items = _until(place, self.items)
        if self.coming is not None and (self.coming.placed is None or place < self.coming.placed):
            self.coming.placed = place

    def close(self, at: float) -> None:
        """Forget what was read, which is no use, and go without for a while."""
        self.items, self.coming, self.closed_until = (), None, at + PAUSE


def _place(item: RawEnvelope) -> Place:
    return item.priority, item.at


def _until(place: Place, items: Sequence[RawEnvelope]) -> Sequence[RawEnvelope]:
    return list(takewhile(lambda item: _place(item) <= place, items))
