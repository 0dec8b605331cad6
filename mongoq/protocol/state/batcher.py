"""Group commit: concurrent callers of one operation share commands.

There is no timer. A caller that arrives while no batch is in flight sends at once and alone. Callers that arrive in
the meantime form the next batch, or two of them when they are many. Each caller returns when its own part is
acknowledged, so durability is that of a single command. A batcher only decides which callers go together; a driver
sends the batches and knows which callers were cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from mongoq.protocol.flow import Flow, Interruption, Shared

MAX_BATCH = 1_000
"""Callers in one batch."""
CONCURRENT_CALLERS = 48
"""Callers from which two batches in flight are faster than one: 14 % for pushes of 48 and 64 callers, 19 % for 96."""
NEARLY_FULL_SHARE = 0.75
"""The part of a full batch that is worth a second command: some of many callers are always late."""

MAX_BATCHERS = 1_000
"""Batchers that are kept, used or not. A caller that has got one just before it is forgotten sends beside the next."""

Send = Callable[[list[Any]], Flow[Sequence[Any]]]
"""Builds the flow of one batch from its entries. It returns one answer per caller; an exception for a failure."""


@dataclass(slots=True, eq=False)
class Batcher:
    """The callers of one operation, mostly on one queue.

    Attributes:
        send: builds the flow of a batch.
        max_in_flight: batches that may be in flight at the same time; many callers are divided by it. Callers that
            return together would otherwise share one batch forever, with nothing in flight beside it.
        waiting: callers that are in no batch yet, oldest first.
        batches_in_flight: batches that were sent and not answered, or are about to be sent.
        callers_in_flight: callers in those batches.
    """

    send: Send
    max_in_flight: int = 1
    waiting: deque[Shared[Any]] = field(default_factory=deque)
    batches_in_flight: int = 0
    callers_in_flight: int = 0

    @property
    def is_free(self) -> bool:
        """True when a batch may be sent now; beside another one only when nearly a full batch waits."""
        if not self.batches_in_flight or self.batches_in_flight >= self.max_in_flight:
            return not self.batches_in_flight
        return len(self.waiting) >= NEARLY_FULL_SHARE * self._max_size

    @property
    def is_used(self) -> bool:
        """True while a caller waits in it, or for its answer."""
        return bool(self.waiting) or self.batches_in_flight > 0

    @property
    def _max_size(self) -> int:
        """The most callers of the next batch; all of them when they are few."""
        callers = len(self.waiting) + self.callers_in_flight
        return MAX_BATCH if callers < CONCURRENT_CALLERS else min(MAX_BATCH, -(-callers // self.max_in_flight))

    def next_batch(self, is_gone: Callable[[Any], bool]) -> list[Shared[Any]]:
        """Remove and return the oldest caller and the callers of its kind, first in first out.

        Cancelled callers are dropped. Callers of other kinds keep their places. The batch is in flight until the driver
        reports it with ``finish``.
        """
        batch: list[Shared[Any]] = []
        stay: deque[Shared[Any]] = deque()
        kind: Hashable = None
        most = self._max_size
        while self.waiting and len(batch) < most:
            shared = self.waiting.popleft()
            if is_gone(shared.waiter):
                continue
            if not batch:
                kind = shared.kind
            (batch if shared.kind == kind else stay).append(shared)
        self.waiting.extendleft(reversed(stay))
        self.callers_in_flight += len(batch)
        return batch

    def finish(self, batch: Sequence[Shared[Any]]) -> None:
        """Record that a batch was answered or has failed."""
        self.callers_in_flight -= len(batch)

    def reassign(self, kind: Hashable, is_gone: Callable[[Any], bool]) -> Shared[Any] | None:
        """Remove and return the oldest caller of this kind, to receive an item whose own caller was cancelled."""
        for shared in self.waiting:
            if shared.kind == kind and not is_gone(shared.waiter):
                self.waiting.remove(shared)
                return shared
        return None


def copies(error: Exception, number: int) -> list[Exception]:
    """Return one copy of the error per caller: an error that all of them raise would collect all their tracebacks."""
    return [_copy(error) for _ in range(number)]


def _copy(error: Exception) -> Exception:
    try:
        copied = copy(error)
    except Exception:  # an error may be made in any way
        return error
    if isinstance(copied, Interruption):
        copied.cause = _copy(copied.cause)
    return copied


class Batchers:
    """The batchers of a broker, each made at its first use.

    Attributes:
        divides: the driver can have several batches of one batcher in flight.
    """

    def __init__(self) -> None:
        self.divides = False
        self._batchers: dict[Hashable, Batcher] = {}

    def batcher(self, key: Hashable, send: Send, *, max_in_flight: int = 1) -> Batcher:
        """Return the batcher with this key, made at first use with ``send`` and ``max_in_flight``."""
        batcher = self._batchers.get(key)
        if batcher is None:
            if len(self._batchers) >= MAX_BATCHERS:
                self._batchers = {key: each for key, each in list(self._batchers.items()) if each.is_used}
            batcher = self._batchers[key] = Batcher(send, max_in_flight if self.divides else 1)
        return batcher

    def clear(self) -> None:
        """Forget all callers, in a forked child: they belong to the parent."""
        self._batchers.clear()
