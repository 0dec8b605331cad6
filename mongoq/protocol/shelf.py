"""Shelves: what was read of the head of a queue and not claimed yet, so that not every claim reads for itself.

What is here is nobody's: a claim finds out what of it is still there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any

from mongoq.model.indexes import BEGINNING
from mongoq.model.item import Document, id_keys
from mongoq.protocol.heads import Start
from mongoq.protocol.request import Begun, Command

__all__ = ["FRESH", "Coming", "Shelf"]

Place = tuple[float, datetime]

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
class Coming:
    """A read under way.

    Attributes:
        command: what is sent.
        start: where it begins.
        begun: its reply, where nobody waits for it yet.
        claimed: the keys of ids that it may find although they are claimed by the time it is there.
        placed: the first place that this process has put an item into meanwhile, which it may have missed.
    """

    command: Command[Any]
    start: Start
    begun: Begun | None = None
    claimed: set[Any] = field(default_factory=set)
    placed: Place | None = None

    def is_fresh(self, at: float) -> bool:
        """Say whether what it finds is good enough."""
        return at - self.start.at <= FRESH

    def left(self, read: Sequence[Document]) -> Sequence[Document]:
        """Return what of its documents is still to be claimed, in this order."""
        keys = _keys(read)
        left = [document for key, document in zip(keys, read, strict=True) if key not in self.claimed]
        return left if self.placed is None else _until(self.placed, left)


@dataclass(slots=True)
class Shelf:
    """What was read ahead of one queue.

    Attributes:
        documents: untouched ones, in the order of claims. Replaced as a whole, so that threads see one state of them.
        read_at: when they were asked for, on the monotonic clock.
        size: the bytes of one of them; so large are others thought to be.
        coming: what is being read to take their place.
        closed_until: until when nothing is read ahead.
        asked_at: when the last claim began.
        busy: claims follow one another so closely that the next will find what is read ahead still fresh.
    """

    documents: Sequence[Document] = ()
    read_at: float = float("-inf")
    size: int = BYTES
    coming: Coming | None = None
    closed_until: float = float("-inf")
    asked_at: float = float("-inf")
    busy: bool = False

    def most(self, n: int) -> int:
        """Return how many to read where ``n`` are to be claimed."""
        return max(n, min(n * BATCHES, BYTES // max(self.size, 1))) if self.busy and n >= FEW else n

    def asked(self, at: float) -> None:
        """Take in that a claim begins."""
        self.busy, self.asked_at = at - self.asked_at < FRESH / 2, at

    def take(self, n: int, at: float) -> Sequence[Document]:
        """Take the first ``n``, to claim them; none where there are fewer, or where they were read too long ago."""
        documents = self.documents
        if len(documents) < n or at - self.read_at > FRESH:
            return ()
        self.documents = documents[n:]
        return documents[:n]

    def put(self, documents: Sequence[Document], at: float, size: int) -> None:
        """Take in what was read; what was here before is among it, as far as it is there still."""
        self.documents, self.read_at, self.size = documents, at, size

    def claims(self, documents: Sequence[Document]) -> None:
        """Take in what is about to be claimed from here, which a read under way may find all the same."""
        if self.coming is not None:
            self.coming.claimed.update(_keys(documents))

    def took(self, keys: Collection[Any]) -> None:
        """Take in what another claim of this process has taken."""
        documents = self.documents
        found = _keys(documents)
        self.documents = [document for key, document in zip(found, documents, strict=True) if key not in keys]
        if self.coming is not None:
            self.coming.claimed.update(keys)

    @property
    def is_filled(self) -> bool:
        """Whether there is anything, or will be."""
        return bool(self.documents) or self.coming is not None

    def placed(self, priority: int | None, when: datetime | None) -> None:
        """Take in that this process put something into the queue: what may come behind it is to be read again."""
        place = -math.inf if priority is None else priority, BEGINNING if when is None else when
        if self.documents and place < _place(self.documents[-1]):
            self.documents = _until(place, self.documents)
        if self.coming is not None and (self.coming.placed is None or place < self.coming.placed):
            self.coming.placed = place

    def close(self, at: float) -> None:
        """Forget what was read, which is no use, and go without for a while."""
        self.documents, self.coming, self.closed_until = (), None, at + PAUSE


def _keys(documents: Sequence[Document]) -> Sequence[Any]:
    return id_keys([document["_id"] for document in documents])


def _place(document: Document) -> Place:
    return document["priority"], document["when"]


def _until(place: Place, documents: Sequence[Document]) -> Sequence[Document]:
    return list(takewhile(lambda document: _place(document) <= place, documents))
