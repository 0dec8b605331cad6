"""Group commit: concurrent callers of one operation share commands.

There is no timer. A caller that arrives while no batch is in flight sends at once and alone. Callers that arrive in
the meantime form the next batch, or two or three of them when they are many. Each caller returns when its own part is
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

__all__ = ["CROWD", "LARGE", "MOST", "Batcher", "Batchers", "Send", "copies"]

MOST = 1_000
"""Callers in one batch."""
CROWD = 48
"""Callers from which several batches in flight are faster than one."""
NEARLY = 0.75
"""The part of a full batch that is worth a second command: some of many callers are always late."""
REST = 1
"""Rounds of all callers between two counts of them: finding out which task calls takes a twentieth of a call."""
LARGE = 128
"""Callers from which they are divided by three, when they do other work in between; fewer are divided by two."""

Send = Callable[[list[Any]], Flow[Sequence[Any]]]
"""Builds the flow of one batch from its entries. It returns one answer per caller; an exception for a failure."""


@dataclass(slots=True, eq=False)
class Batcher:
    """The callers of one operation, mostly on one queue.

    Attributes:
        send: builds the flow of a batch.
        max_in_flight: batches that may be in flight at the same time.
        shares: batches into which many callers are divided. Callers that return together would otherwise share one
            batch forever, with nothing in flight beside it, here and in the batcher of their next operation.
        waiting: callers that are in no batch yet, oldest first.
        batches_in_flight: batches that were sent and not answered, or are about to be sent.
        callers_in_flight: callers in those batches.
        sent: callers that were in a batch so far.
        crowd: the estimated number of callers that come again and again: calls between two calls of one caller.
        sample: the sampled caller and the number of calls before its own; set and cleared by ``enter``.
        next_count: the number of calls before which the sampled caller is not expected back.
        last: the latest caller among those that may send for themselves.
    """

    send: Send
    max_in_flight: int = 1
    shares: int = 1
    waiting: deque[Shared[Any]] = field(default_factory=deque)
    batches_in_flight: int = 0
    callers_in_flight: int = 0
    sent: int = 0
    crowd: int = 0
    sample: tuple[Hashable, int] | None = None
    next_count: int = 0
    last: Hashable = None

    @property
    def is_free(self) -> bool:
        """True when a batch may be sent now; beside another one only when nearly a full batch waits."""
        if not self.batches_in_flight or self.batches_in_flight >= self.max_in_flight:
            return not self.batches_in_flight
        return len(self.waiting) >= NEARLY * self._share

    @property
    def _share(self) -> int:
        """The size of the next batch at most; all of them when they are few."""
        crowd = self.crowd
        if self.max_in_flight > 1:  # otherwise dividing callers that may never return costs a command
            crowd = max(crowd, len(self.waiting) + self.callers_in_flight)
        if crowd < CROWD:
            return MOST
        return -(-crowd // min(self.shares, 2 if crowd < LARGE else self.shares))

    def enter(self, shared: Shared[Any], caller: Callable[[], Hashable]) -> None:
        """Append a caller, and count the calls until it calls again."""
        if self.shares > 1 and self.sent + len(self.waiting) >= self.next_count:
            self._count_round(self.sent + len(self.waiting), caller)
        self.waiting.append(shared)

    def _count_round(self, come: int, caller: Callable[[], Hashable]) -> None:
        if self.sample is None:
            self.sample = caller(), come
            self.next_count = come + -(-self.crowd // 2)
            return
        gone_round = come - self.sample[1]
        if caller() == self.sample[0]:
            self.crowd, self.sample, self.next_count = gone_round, None, come + REST * gone_round
        elif gone_round > 2 * self.crowd + MOST:  # the sampled caller has called for the last time
            self.crowd, self.sample = 0, None

    def start_alone(self, caller: Hashable) -> bool:
        """Return whether a caller may send for itself: it also made the latest call, and nothing is in flight.

        A caller that differs from the latest one may be the first of many that arrive at once. The caller counts as in
        flight until it calls ``finish_alone``.
        """
        alone = caller == self.last and not self.batches_in_flight and not self.waiting
        self.last = caller
        if alone:
            self.batches_in_flight = self.callers_in_flight = 1
        return alone

    def finish_alone(self) -> None:
        """Record that a caller that sent for itself has its answer."""
        self.batches_in_flight -= 1
        self.callers_in_flight -= 1

    def next_batch(self, is_gone: Callable[[Any], bool]) -> list[Shared[Any]]:
        """Remove and return the oldest caller and the callers of its kind, first in first out.

        Cancelled callers are dropped. Callers of other kinds keep their places. The batch is in flight until the driver
        reports it with ``finish``.
        """
        batch: list[Shared[Any]] = []
        stay: deque[Shared[Any]] = deque()
        kind: Hashable = None
        most = min(MOST, self._share)
        while self.waiting and len(batch) < most:
            shared = self.waiting.popleft()
            if is_gone(shared.waiter):
                continue
            if not batch:
                kind = shared.kind
            (batch if shared.kind == kind else stay).append(shared)
        self.waiting.extendleft(reversed(stay))
        self.callers_in_flight += len(batch)
        self.sent += len(batch)
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
        made = copy(error)
    except Exception:  # an error may be made in any way
        return error
    if isinstance(made, Interruption):
        made.cause = _copy(made.cause)
    return made


def nothing(batcher: Batcher) -> None:
    """Send nothing: the waiting callers send for themselves (threads)."""


class Batchers:
    """The batchers of a broker, each made at its first use.

    Attributes:
        divides: the driver can have several batches of one batcher in flight.
        caller: returns the identity of the running caller; ``None`` when no caller sends for itself.
        go_on: makes the driver send the next batch of a batcher.
    """

    def __init__(self) -> None:
        self.divides = False
        self.caller: Callable[[], Hashable] | None = None
        self.go_on: Callable[[Batcher], None] = nothing
        self._batchers: dict[Hashable, Batcher] = {}

    def batcher(self, key: Hashable, send: Send, *, max_in_flight: int = 1, shares: int = 1) -> Batcher:
        """Return the batcher with this key, made at first use with ``send``, ``max_in_flight`` and ``shares``."""
        found = self._batchers.get(key)
        if found is None:
            found = self._batchers[key] = Batcher(send, max_in_flight, shares) if self.divides else Batcher(send)
        return found

    def clear(self) -> None:
        """Forget all callers, in a forked child: they belong to the parent."""
        self._batchers.clear()
