"""Items read ahead from the head of a queue, so that not every claim has to read first.

The buffer reserves nothing: the claim of an item from here finds out whether another process was faster.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from mongoq.model.indexes import ClaimPlace, claim_place
from mongoq.model.item import Document, id_key
from mongoq.protocol.flow import Begun, Command
from mongoq.protocol.state.claim_hints import ScanStart

PREFETCHED_ITEM_SECONDS = 0.1
"""Seconds for which read items are used; an item that another process puts before them waits so much longer."""
BATCHES_PER_READ = 4
"""Batches that one read fetches, the one that is claimed at once included."""
MIN_PREFETCH_BATCH = 16
"""The smallest batch for which items are read ahead."""
PREFETCH_READ_BYTES = 128 * 1024
"""About how many bytes one read fetches, unless a single batch is larger."""
PREFETCH_PAUSE_SECONDS = 1.0
"""Seconds without reading ahead after the read items turned out to be useless."""


@dataclass(slots=True)
class PendingRead:
    """A read in flight.

    Attributes:
        command: the ``find``.
        start: where its scan begins.
        pending: the handle of its reply, when the command was sent and the reply not awaited yet.
        claimed: ``id_key`` of items that this process has claimed since; the read may still return them.
        placed: the first place where this process has put an item since; the read may have missed it.
    """

    command: Command[Any]
    start: ScanStart
    pending: Begun | None = None
    claimed: set[Any] = field(default_factory=set)
    placed: ClaimPlace | None = None

    def is_fresh(self, at: float) -> bool:
        """Return whether its items may still be used."""
        return at - self.start.at <= PREFETCHED_ITEM_SECONDS

    def drop_claimed(self, read: Sequence[Document]) -> Sequence[Document]:
        """Return the items that this process has not claimed since, in the same order."""
        return [item for item in read if id_key(item["_id"]) not in self.claimed]

    def before(self, read: Sequence[Document]) -> Sequence[Document]:
        """Return the items before the first one that this process has put into the queue since."""
        return read if self.placed is None else _until(self.placed, read)


@dataclass(slots=True)
class PrefetchBuffer:
    """The items read ahead from one queue.

    Attributes:
        items: envelopes of items that were never reserved, in the order of claims. Replaced as a whole, so that
            threads see a consistent list.
        read_at: when their read was sent, on the monotonic clock.
        size: bytes of one read item; the estimate for the next read.
        coming: the read in flight that will replace them.
        claimed_keys: ``id_key`` of items that claims in flight try to take.
        singles: claims of single items in flight; each may take any item.
        single: the last one of these that has ended.
        pid: the process that owns this state.
        closed_until: until when nothing is read ahead, on the monotonic clock.
        asked_at: when the last claim began, on the monotonic clock.
        busy: claims follow each other so closely that the next one will find the read items still fresh.
    """

    items: Sequence[Document] = ()
    read_at: float = float("-inf")
    size: int = PREFETCH_READ_BYTES
    coming: PendingRead | None = None
    claimed_keys: set[Any] = field(default_factory=set)
    singles: set[object] = field(default_factory=set)
    single: object = None
    pid: int = field(default_factory=os.getpid)
    closed_until: float = float("-inf")
    asked_at: float = float("-inf")
    busy: bool = False

    def most(self, n: int) -> int:
        """Return how many items to read for a claim of ``n``."""
        return (
            max(n, min(n * BATCHES_PER_READ, PREFETCH_READ_BYTES // max(self.size, 1)))
            if self.busy and n >= MIN_PREFETCH_BATCH
            else n
        )

    def record_claim(self, at: float) -> None:
        """Record that a claim begins."""
        self.busy, self.asked_at = at - self.asked_at < PREFETCHED_ITEM_SECONDS / 2, at

    def take(self, n: int, at: float) -> Sequence[Document]:
        """Remove and return the first ``n`` items; none when there are fewer, or when they are too old."""
        items = self.items
        if len(items) < n or at - self.read_at > PREFETCHED_ITEM_SECONDS:
            return ()
        self.items = items[n:]
        return items[:n]

    def refill(self, items: Sequence[Document], at: float, size: int) -> None:
        """Replace the items by what a new read has returned."""
        self.items, self.read_at, self.size = items, at, size

    def begin_claim(self, keys: Collection[Any]) -> None:
        """Record items that a claim tries to take; a read may still return them until ``end_claim``."""
        self.claimed_keys.update(keys)
        self._mark_claimed(keys)

    def end_claim(self, keys: Collection[Any]) -> None:
        """Record that a claim of items has ended."""
        self.claimed_keys.difference_update(keys)

    def here(self) -> None:
        """Forget everything in a forked child: reads and claims in flight belong to the parent."""
        if self.pid != os.getpid():
            self.pid, self.claimed_keys, self.singles = os.getpid(), set(), set()
            self.items, self.coming = (), None

    @contextmanager
    def claims_one(self) -> Iterator[None]:
        """Record that a claim of one item is in flight, which may take any item; several threads may claim at once."""
        single = object()
        self.singles.add(single)
        try:
            yield
        finally:
            self.single = single
            self.singles.discard(single)

    def remove(self, keys: Collection[Any]) -> None:
        """Remove items that another claim of this process has taken."""
        self.items = [item for item in self.items if id_key(item["_id"]) not in keys]
        self._mark_claimed(keys)

    def _mark_claimed(self, keys: Collection[Any]) -> None:
        """Let the read in flight leave out these items; drop a read whose reply is too old for the next claim.

        The crowd that it was begun for may be gone. Without an end, every later claim would add its items to it.
        """
        coming = self.coming
        if coming is None:
            return
        if coming.pending is not None and coming.pending.reply.done() and not coming.is_fresh(time.monotonic()):
            self.coming = None
        else:
            coming.claimed.update(keys)

    @property
    def is_filled(self) -> bool:
        """True when there are items, or a read in flight."""
        return bool(self.items) or self.coming is not None

    def drop_behind(self, priority: int | None, when: datetime | None) -> None:
        """Drop the items behind a place where this process has put an item: they must be read again."""
        place = claim_place(priority, when)
        if self.items and place < _place(self.items[-1]):
            self.items = _until(place, self.items)
        if self.coming is not None and (self.coming.placed is None or place < self.coming.placed):
            self.coming.placed = place

    def close(self, at: float) -> None:
        """Drop the items, and read nothing ahead for ``PREFETCH_PAUSE_SECONDS``."""
        self.items, self.coming, self.closed_until = (), None, at + PREFETCH_PAUSE_SECONDS


def _place(item: Document) -> ClaimPlace:
    return claim_place(item["priority"], item["when"])


def _until(place: ClaimPlace, items: Sequence[Document]) -> Sequence[Document]:
    return list(takewhile(lambda item: _place(item) <= place, items))
